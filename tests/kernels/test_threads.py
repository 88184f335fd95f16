"""The parallel loop: every job once, denormals flushed on every thread, scratch not shared, safe after fork."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable

import pytest
import torch

from sparta.kernels.codegen import threads as threads_module
from sparta.kernels.codegen.ir import F32, I64, PTR, Function, Module
from sparta.kernels.codegen.jit import Native, load
from sparta.kernels.codegen.threads import borrowed, job_entry, openmp, run, threading_backend

_JOBS = 13


def _kernel(emit: Callable[[Function], None]) -> Native:
    module = Module()
    f = module.function("body", {"x": PTR, "job": I64, "scratch": PTR}, internal=True)
    emit(f)
    return load(module, job_entry(module, f))


def _count(f: Function) -> None:
    f.store(f.load(I64, f["x"], f["job"]) + 1, f["x"], f["job"])


@pytest.mark.parametrize("threads", [1, 2, 3, 64])
@pytest.mark.parametrize("jobs", [0, 1, 2, _JOBS])
def test_every_job_runs_once(jobs: int, threads: int) -> None:
    counts = torch.zeros(_JOBS, dtype=torch.int64)
    run(_kernel(_count), (counts.data_ptr(),), jobs=jobs, threads=threads)
    assert counts.tolist() == [1] * jobs + [0] * (_JOBS - jobs)


@pytest.mark.parametrize("threads", [1, 2])
def test_denormals_are_zero_inside_and_kept_outside(threads: int) -> None:
    denormal = 1e-40
    results = torch.full((_JOBS,), denormal)

    def double(f: Function) -> None:
        f.store(f.load(F32, f["x"], f["job"]) * 2.0, f["x"], f["job"])

    run(_kernel(double), (results.data_ptr(),), jobs=_JOBS, threads=threads)
    assert results.tolist() == [0.0] * _JOBS
    # torch's own threads, which are the same, compute with denormals again.
    torch.set_num_threads(2)
    assert bool((torch.full((1_000_000,), denormal) * 2.0 > 0).all())


def test_threads_have_scratch_of_their_own() -> None:
    results = torch.zeros(_JOBS, dtype=torch.int64)

    def through_scratch(f: Function) -> None:
        f.store(f["job"], f["scratch"], 1000)
        f.store(f.load(I64, f["scratch"], 1000), f["x"], f["job"])

    kernel = _kernel(through_scratch)
    for _ in range(20):
        run(kernel, (results.data_ptr(),), jobs=_JOBS, threads=4, scratch=8 * 1001)
    assert results.tolist() == list(range(_JOBS))


def test_borrowed_memory_is_aligned_exclusive_and_reused() -> None:
    with borrowed(100) as first, borrowed(100) as second:
        assert first != second
        assert first % 64 == second % 64 == 0
    with borrowed(100) as again:
        assert again in (first, second)


def test_two_python_threads_at_once() -> None:
    kernel = _kernel(_count)
    counts = [torch.zeros(_JOBS, dtype=torch.int64) for _ in range(2)]

    def work(own: torch.Tensor) -> None:
        for _ in range(200):
            run(kernel, (own.data_ptr(),), jobs=_JOBS, threads=2, scratch=64)

    workers = [threading.Thread(target=work, args=(own,)) for own in counts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(own.tolist() == [200] * _JOBS for own in counts)


def _report_child(queue: multiprocessing.Queue[tuple[list[int], str]]) -> None:
    counts = torch.zeros(_JOBS, dtype=torch.int64)
    run(_kernel(_count), (counts.data_ptr(),), jobs=_JOBS, threads=2)
    queue.put((counts.tolist(), threading_backend()))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the platform does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_works_on_one_thread() -> None:
    before = torch.zeros(_JOBS, dtype=torch.int64)
    run(_kernel(_count), (before.data_ptr(),), jobs=_JOBS, threads=2)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_report_child, args=(queue,))
    child.start()
    counts, backend = queue.get(timeout=60)
    child.join()
    assert counts == [1] * _JOBS
    assert backend == "single-threaded: this is a forked process"


def test_without_openmp_everything_runs_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "openmp", lambda: None)
    threads_module._launcher.cache_clear()
    counts = torch.zeros(_JOBS, dtype=torch.int64)
    run(_kernel(_count), (counts.data_ptr(),), jobs=_JOBS, threads=2)
    threads_module._launcher.cache_clear()
    assert counts.tolist() == [1] * _JOBS
    assert threading_backend().startswith("single-threaded: torch ships no OpenMP")


def test_backend_is_the_runtime_of_torch() -> None:
    runtime = openmp()
    expected = f"OpenMP ({runtime.path.name})" if runtime else "single-threaded"
    assert threading_backend().startswith(expected)

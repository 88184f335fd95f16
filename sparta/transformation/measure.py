"""Honest timing: candidates take turns in one process, and medians are compared."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

Run = Callable[[], object]

SHORTEST_SAMPLE = 2e-4
"""Seconds: faster functions are called several times per sample, so that the clock's grain does not matter."""

LONG_RUN = 2e-2
"""Seconds from which a function brings its data into the caches while it runs."""


@contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _sample(run: Run, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def _first_sample(run: Run) -> float:
    """Seconds of one call, roughly; the first call of something short may cost more than it does later."""
    seconds = _sample(run, 1)
    return seconds if seconds > LONG_RUN else min(seconds, _sample(run, 1))


def measure(runs: Mapping[str, Run], *, budget: float = 0.03, rounds: tuple[int, int] = (5, 40)) -> dict[str, float]:
    """Median seconds of one call of each function, the functions taking turns.

    Parameters
    ----------
    runs
        Name -> function without arguments.
    budget
        Seconds to spend on each function, roughly.
    rounds
        Fewest and most rounds.

    Examples
    --------
    >>> times = measure({"nothing": lambda: None, "sleep": lambda: time.sleep(1e-4)})
    >>> times["nothing"] < times["sleep"]
    True
    """
    with _no_collection():
        first = {name: _first_sample(run) for name, run in runs.items()}
        calls = {name: max(1, int(SHORTEST_SAMPLE / max(seconds, 1e-7))) for name, seconds in first.items()}
        per_round = sum(first[name] * (calls[name] + 1) for name in runs)
        count = int(min(rounds[1], max(rounds[0], budget * len(runs) / max(per_round, 1e-9))))
        long = {name for name, seconds in first.items() if seconds > LONG_RUN}
        samples: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(count):
            for name, run in runs.items():
                if name not in long:
                    run()  # brings its own data back into the caches
                samples[name].append(_sample(run, calls[name]))
    return {name: statistics.median(values) for name, values in samples.items()}


ADVANTAGE = 0.95
"""A sparse choice must take at most this fraction of the dense latency: dense wins ties."""


def fastest(times: Mapping[str, float], dense: str) -> str:
    """The name of the fastest entry, or `dense` where nothing beats it by 5 %.

    >>> fastest({"dense": 1.0, "csr": 0.97}, "dense"), fastest({"dense": 1.0, "csr": 0.5}, "dense")
    ('dense', 'csr')
    """
    best = min(times, key=lambda name: times[name])
    return best if times[best] <= ADVANTAGE * times[dense] else dense

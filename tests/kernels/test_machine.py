"""The machine description: levels, caches, and the estimates made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparta.kernels import host_machine, machine_for
from sparta.kernels import machine as machine_module

AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")


@pytest.mark.parametrize(
    ("features", "isa", "lanes", "registers"),
    [
        (("avx2", "fma", *AVX512), "avx512", 16, 32),
        (("avx2", "fma", "avx512f"), "avx2", 8, 16),
        (("avx2", "fma"), "avx2", 8, 16),
        (("avx2",), "generic", 4, 16),
        (("neon",), "neon", 4, 32),
        ((), "generic", 4, 16),
    ],
)
def test_the_widest_instruction_set_is_taken(features: tuple[str, ...], isa: str, lanes: int, registers: int) -> None:
    machine = machine_for(frozenset(features))
    assert (machine.isa, machine.lanes, machine.registers) == (isa, lanes, registers)


def test_the_host_is_described_once_and_in_words() -> None:
    machine = host_machine()
    assert machine is host_machine()
    assert machine.cores >= 1
    assert machine.l1 < machine.l2 <= machine.l3
    assert machine.name in machine.describe()["processor"]
    assert machine.isa in machine.describe()["instruction set"]


def test_caches_come_from_the_file_system(tmp_path: Path) -> None:
    for number, (level, kind, size) in enumerate(
        (("1", "Data", "48K"), ("1", "Instruction", "64K"), ("2", "Unified", "2M"))
    ):
        index = tmp_path / f"index{number}"
        index.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (index / name).write_text(f"{text}\n")
    assert machine_module._host_caches(tmp_path)[:2] == (48 << 10, 2 << 20)


def test_caches_that_the_system_hides_get_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert machine_module._host_caches(tmp_path / "missing") == (0, 0, 0)
    machine = machine_for(frozenset(), caches=(0, 0, 0))
    assert 0 < machine.l1 < machine.l2 < machine.l3


@pytest.mark.parametrize(("text", "size"), [("32K", 32768), ("1M", 1 << 20), ("", 0), ("K", 0), ("12", 0), ("xK", 0)])
def test_sizes_are_read_or_refused(text: str, size: int) -> None:
    assert machine_module._bytes(text) == size


@pytest.mark.parametrize(
    ("features", "permitted", "words"),
    [((), True, "absent"), (("amx-tile",), False, "refuses"), (("amx-tile",), True, "usable")],
)
def test_amx_needs_the_processor_and_the_system(
    features: tuple[str, ...], permitted: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "_request_amx", lambda: permitted)
    machine = machine_for(frozenset(features))
    assert machine.amx_permitted == (permitted and bool(features))
    assert words in machine.describe()["AMX"]


def test_data_that_fits_a_cache_streams_at_its_rate() -> None:
    machine = machine_for(frozenset(), caches=(32 << 10, 1 << 20, 8 << 20))
    rates = [machine.bandwidth(size) for size in (1 << 10, 1 << 20, 2 << 20, 9 << 20)]
    assert rates == [machine.l2_bandwidth, machine.l2_bandwidth, machine.l3_bandwidth, machine.dram_bandwidth]


def test_time_is_the_larger_of_computing_and_reading() -> None:
    machine = machine_for(frozenset(("avx2", "fma")))
    computing, reading = machine.seconds(multiplies=1e6, streamed=0), machine.seconds(multiplies=0, streamed=1e6)
    assert computing == pytest.approx(2e6 / machine.gflops * 1e-9)
    assert machine.seconds(multiplies=1e6, streamed=1e6) == max(computing, reading)

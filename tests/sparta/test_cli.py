"""The command line: exit codes, JSON, one-line errors, and the way from a saved program to a measured comparison."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import sparta
from sparta import cli, doctor


@dataclass(frozen=True)
class Ran:
    """How one command ended, and what it printed."""

    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `sparta` with the given arguments in this process."""

    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["sparta", *map(str, arguments)])
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        return Ran(status, *capsys.readouterr())

    return call


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A saved program."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)).eval()
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, (torch.randn(16, 64),)), path)
    return path


@pytest.fixture
def masks(tmp_path: Path) -> Path:
    """Masks for that program: half of the first layer's rows, eight ninths of the second's weights, none dead."""
    rows = (torch.arange(128) % 2 == 0).unsqueeze(1).expand(128, 64).clone()
    path = tmp_path / "masks.pth"
    torch.save(
        {"0": {"weight": rows, "bias": None}, "2": {"weight": torch.arange(32 * 128).reshape(32, 128) % 9 == 0}}, path
    )
    return path


def test_version(run: Run) -> None:
    assert run("--version") == Ran(0, f"sparta {sparta.__version__}\n", "")


@pytest.mark.parametrize("arguments", [("fly",), ("inspect",), ("demo", "--batch", "0"), ("optimize", "--loud")])
def test_wrong_usage_is_status_2(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).status == 2


@pytest.mark.parametrize("command", ["demo", "inspect", "optimize", "bench", "doctor"])
def test_every_command_has_help(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert ran.status == 0
    assert "--json" in ran.out
    assert "--quiet" in ran.out


def test_refusals_are_one_message_and_status_1(run: Run, tmp_path: Path) -> None:
    ran = run("inspect", tmp_path / "nothing.pth")
    assert ran.status == 1
    assert ran.err.startswith("sparta: ")
    assert "no such file" in ran.err
    assert "Traceback" not in ran.err
    assert not ran.out


def test_a_damaged_program_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"not a program")
    ran = run("inspect", path)
    assert ran.status == 1
    assert f"cannot read {path}" in ran.err


def test_inspect_masks(run: Run, masks: Path) -> None:
    found = json.loads(run("inspect", masks, "--json").out)
    assert found["kind"] == "masks"
    assert [entry["name"] for entry in found["tensors"]] == ["0.weight", "2.weight"]
    assert found["tensors"][0]["density"] == 0.5
    assert found["tensors"][0]["zeros"] == 64 * 64


def test_inspect_shows_a_table(run: Run, masks: Path) -> None:
    shown = run("inspect", masks).out
    assert "0.weight" in shown
    assert "128x64" in shown
    assert "50%" in shown


def test_inspect_a_program(run: Run, program: Path) -> None:
    found = json.loads(run("inspect", program, "--json").out)
    assert found["kind"] == "exported program"
    assert [entry["density"] for entry in found["tensors"]] == [1.0, 1.0]


def test_quiet_prints_nothing(run: Run, masks: Path) -> None:
    assert run("inspect", masks, "--quiet") == Ran(0, "", "")


def test_optimize_then_bench(run: Run, program: Path, masks: Path, tmp_path: Path) -> None:
    saved = tmp_path / "model.sparta"
    ran = run("optimize", program, "--masks", masks, "-o", saved, "--json", "--threads", 1)
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["removed"]["0.weight"] == [[128, 64], [64, 64]]
    ran = run("bench", saved, program, "--masks", masks, "--json")
    assert ran.status == 0, ran.err
    compared = json.loads(ran.out)
    assert compared["error"] < 1e-5
    assert compared["dense_ms"] > 0
    assert compared["optimized_ms"] > 0


def test_bench_of_the_saved_model_alone(run: Run, program: Path, masks: Path, tmp_path: Path) -> None:
    saved = tmp_path / "model.sparta"
    assert run("optimize", program, "--masks", masks, "-o", saved, "-q").status == 0
    ran = run("bench", saved, "--json")
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["error"] < 1e-5


def test_bench_fails_where_results_differ(run: Run, program: Path, masks: Path, tmp_path: Path) -> None:
    saved = tmp_path / "model.sparta"
    assert run("optimize", program, "--masks", masks, "-o", saved, "-q").status == 0
    ran = run("bench", saved, program)
    assert ran.status == 1
    assert "The results differ" in ran.out


def test_masks_that_do_not_fit_are_refused(run: Run, program: Path, tmp_path: Path) -> None:
    path = tmp_path / "masks.pth"
    torch.save({"0.weight": torch.ones(3, 3), "9.weight": torch.ones(2)}, path)
    ran = run("optimize", program, "--masks", path, "-o", tmp_path / "out")
    assert ran.status == 1
    assert "0.weight" in ran.err
    assert "9.weight" in ran.err


def test_a_directory_that_does_not_exist_is_one_message(run: Run, program: Path, tmp_path: Path) -> None:
    ran = run("optimize", program, "-o", tmp_path / "none" / "out", "-q")
    assert ran.status == 1
    assert ran.err.startswith("sparta: cannot write ")


def test_doctor(run: Run) -> None:
    findings = json.loads(run("doctor", "--json").out)
    assert "native code" in [finding["topic"] for finding in findings]


def test_doctor_fails_where_sparse_kernels_cannot_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: (doctor.Finding("native code", "refused", "failed", "allow it"),))
    ran = run("doctor")
    assert ran.status == 1
    assert "native code: allow it" in ran.out


def test_the_command_is_installed() -> None:
    command = [Path(sys.executable).parent / "sparta", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == f"sparta {sparta.__version__}"

"""What every test shares: one torch thread, fixed seeds, a private kernel cache, golden files and marker skips."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, settings
from llvmlite import binding

settings.register_profile(
    "sparta", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("sparta")

_CACHE = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--update-golden`."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/**/golden from the current output")


def pytest_configure(config: pytest.Config) -> None:
    """Points the kernel cache of this process and its children at a directory that dies with the session."""
    config.stash[_CACHE] = os.environ["SPARTA_CACHE_DIR"] = tempfile.mkdtemp(prefix="sparta-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the session's kernel cache."""
    shutil.rmtree(config.stash[_CACHE], ignore_errors=True)


@cache
def _host_features() -> frozenset[str]:
    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)


def _missing_isa(mark: pytest.Mark) -> str | None:
    missing = set(mark.args) - _host_features()
    return f"this CPU lacks {', '.join(sorted(missing))}" if missing else None


def _missing_module(mark: pytest.Mark) -> str | None:
    return None if importlib.util.find_spec(mark.name) else f"{mark.name} is not installed"


def _missing_compiler(mark: pytest.Mark) -> str | None:
    return None if shutil.which("g++") else "the CUDA emulator needs g++"


def _missing_gpu(mark: pytest.Mark) -> str | None:
    return None if torch.cuda.is_available() else "no GPU"


def _missing_browser(mark: pytest.Mark) -> str | None:
    return None if shutil.which("chromium") else "chromium is not installed"


_NEEDS: dict[str, Callable[[pytest.Mark], str | None]] = {
    "isa": _missing_isa,
    "nni": _missing_module,
    "ray": _missing_module,
    "cuda": _missing_compiler,
    "gpu": _missing_gpu,
    "browser": _missing_browser,
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose marker names something this machine lacks, saying what."""
    for mark in item.iter_markers():
        missing = _NEEDS[mark.name](mark) if mark.name in _NEEDS else None
        if missing:
            pytest.skip(missing)


@pytest.fixture(autouse=True)
def _deterministic() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with `golden/NAME` beside the test file; `--update-golden` rewrites the file instead."""
    folder = request.path.parent / "golden"

    def compare(name: str, text: str) -> None:
        path = folder / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing; create it with: pytest --update-golden {request.path.name}"
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; --update-golden accepts the new text"

    return compare

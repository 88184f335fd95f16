"""The fixtures and marker skips that the other tests rely on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

HERE = Path(__file__).resolve().parent


@pytest.fixture
def conftest(request: pytest.FixtureRequest) -> ModuleType:
    """The module `tests/conftest.py` itself."""
    plugins = request.config.pluginmanager.get_plugins()
    return next(plugin for plugin in plugins if getattr(plugin, "__file__", None) == str(HERE / "conftest.py"))


def test_kernels_are_not_cached_in_the_home_directory() -> None:
    assert "sparta-tests-" in os.environ["SPARTA_CACHE_DIR"]


@pytest.mark.parametrize("_run", range(2))
def test_draws_are_the_same_in_every_test(_run: int) -> None:
    assert torch.get_num_threads() == 1
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))


def test_golden_texts_must_exist_and_agree(golden: Callable[[str, str], None], pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-golden"):
        pytest.skip("golden files are being rewritten")
    with pytest.raises(AssertionError, match="--update-golden"):
        golden("absent.txt", "text")
    assert not (HERE / "golden").exists()


def test_an_instruction_set_that_is_missing_skips(conftest: ModuleType) -> None:
    missing = conftest._missing_isa(pytest.mark.isa("no-such-extension").mark)
    assert missing == "this CPU lacks no-such-extension"
    assert conftest._missing_isa(pytest.mark.isa().mark) is None


def test_a_package_that_is_missing_skips(conftest: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest.importlib.util, "find_spec", lambda _: None)
    assert conftest._missing_module(pytest.mark.nni.mark) == "nni is not installed"

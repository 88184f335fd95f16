"""Every example runs, and says what its reader expects to see."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import sparta

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
SAID = {
    "quickstart": "saved, loaded, same results",
    "prune_and_optimize": "3.bias: (64,) -> (32,)",
    "from_nni_masks": "relative error",
    "stages": "computes the masked model",
}


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SAID.keys()


@pytest.mark.parametrize("name", SAID)
def test_example(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert SAID[name] in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_code_in_the_documentation_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = torch.randn(4, 32)
    given = {"model": nn.Sequential(nn.Linear(32, 64), nn.ReLU()), "masks": {"0.weight": torch.rand(64, 32) > 0.5}}
    names = {"sparta": sparta, "x": x, "args": (x,), "kwargs": {}, **given}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, names)

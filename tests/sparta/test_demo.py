"""The demo on nets small enough for a test, and the wording of its outcomes, good and bad."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import sparta
from sparta import cli, demo, demo_digits
from sparta.demo import Outcome, Pruning, Subject, document, run
from sparta.demo_digits import ConvNet, PatchTransformer, filter_masks, head_masks, load_digits, unstructured_masks
from sparta.reporting import Report, render

SMALL = (
    Subject(
        "ConvNet",
        lambda: ConvNet(channels=32),
        epochs=1,
        tuning=1,
        rate=2e-3,
        prunings=(Pruning("half of the filters", lambda model: filter_masks(model, 0.5)),),
    ),
    Subject(
        "Transformer",
        lambda: PatchTransformer(width=32, heads=4, depth=1),
        epochs=1,
        tuning=1,
        rate=2e-3,
        prunings=(Pruning("90% of the weights", lambda model: unstructured_masks(model, 0.9)),),
    ),
)
OUTCOME = Outcome("Net", "half", 0.5, 0.99, 0.98, 1e-7, 4.0, 2.0, Report(machine={"cpu": "Imaginary"}))


@pytest.mark.slow
def test_small_subjects_end_to_end() -> None:
    said: list[str] = []
    outcomes = run(batch=4, threads=1, subjects=SMALL, say=said.append)
    assert [outcome.model for outcome in outcomes] == ["ConvNet", "Transformer"]
    assert said[0] == "ConvNet: training"
    for outcome in outcomes:
        assert outcome.error <= demo.TOLERANCE
        assert outcome.report.removed or outcome.report.layers
    assert "convs.1.weight" in outcomes[0].report.removed
    assert outcomes[0].optimized_accuracy > 0.3  # far better than chance, after two epochs


def test_the_verdict_counts_only_real_gains() -> None:
    text = render(document([OUTCOME, replace(OUTCOME, model="Other", optimized_ms=3.99)]), "markdown")
    assert "1 of 2 faster, 1.42x in the geometric mean" in text
    assert "Other without half: not faster than dense here (1.00x)." in text
    assert "Net without half: not faster" not in text


def test_a_difference_is_an_error() -> None:
    images = torch.randn(2, 4)
    layer = nn.Linear(4, 3)
    wrong = nn.Linear(4, 3)
    with pytest.raises(sparta.VerificationError, match="report this as a bug"):
        demo._checked_error(layer, wrong, images)
    with torch.no_grad():
        wrong.weight.fill_(math.nan)
    with pytest.raises(sparta.VerificationError):
        demo._checked_error(layer, wrong, images)


def test_the_command_writes_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "run", lambda **_: [OUTCOME])
    cli.demo(output=tmp_path / "page.html", quiet=True)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "2.00x" in page
    assert "99.0% -&gt; 98.0%" in page


def test_without_scikit_learn_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(demo_digits, "import_module", missing)
    with pytest.raises(sparta.SpartaError, match=r'pip install "sparta\[demo\]"'):
        load_digits()


def test_digits_are_split_without_overlap() -> None:
    digits = load_digits()
    assert len(digits.labels) + len(digits.test_labels) == 1797
    assert digits.images.shape[1:] == (1, 8, 8)
    assert digits.images.abs().max() <= 1


def test_filters_go_with_their_bias() -> None:
    masks = filter_masks(ConvNet(channels=16), 0.5)
    weight, bias = masks["convs.1.weight"], masks["convs.1.bias"]
    assert int(bias.sum()) == 8
    assert torch.equal(weight.flatten(1).any(1), bias)
    assert torch.equal(weight.flatten(1).all(1), bias)


def test_heads_go_whole_and_together() -> None:
    masks = head_masks(PatchTransformer(width=32, heads=4, depth=1), 0.5)
    keep = masks["blocks.0.query.bias"].reshape(4, 8)
    assert keep.any(1).sum() == 2
    assert torch.equal(keep.any(1), keep.all(1))
    assert torch.equal(masks["blocks.0.value.bias"], masks["blocks.0.query.bias"])


def test_the_ends_of_a_net_are_not_pruned() -> None:
    names = unstructured_masks(ConvNet(channels=32), 0.9).keys()
    assert names == {"convs.1.weight", "convs.2.weight", "convs.3.weight"}


def test_training_holds_the_masks() -> None:
    model = ConvNet(channels=16)
    masks = unstructured_masks(model, 0.9)
    digits = load_digits()
    few = replace(digits, images=digits.images[:64], labels=digits.labels[:64])
    demo_digits.train(model, few, epochs=1, rate=1e-3, masks=masks)
    for name, mask in masks.items():
        assert not model.get_parameter(name)[~mask].any()
    assert not model.training

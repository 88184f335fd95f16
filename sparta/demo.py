"""The demo: train two small nets on digits, prune each in two ways, optimize, check, and show what that gained."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import sparta
from sparta.demo_digits import (
    ConvNet,
    Digits,
    Masks,
    PatchTransformer,
    accuracy,
    filter_masks,
    head_masks,
    load_digits,
    train,
    unstructured_masks,
)
from sparta.reporting.document import Cell, Column, Document, Table
from sparta.reporting.layout import layout, milliseconds_text, percent_text, speedup_text
from sparta.reporting.report import Report
from sparta.runtime.verify import relative_error
from sparta.tesa.errors import VerificationError
from sparta.transformation.measure import measure

TOLERANCE = 1e-4
"""Largest accepted difference from the masked dense model, relative to its largest output."""

GAIN = 1.05
"""Speedups below this are called no gain: they drown in the noise of a shared machine."""


@dataclass(frozen=True, slots=True)
class Pruning:
    """One way to prune: how it is called and what makes the masks."""

    title: str
    masks: Callable[[nn.Module], Masks]


@dataclass(frozen=True, slots=True)
class Subject:
    """A net of the demo: how to make it, epochs of training and of tuning after pruning, and the ways to prune it."""

    title: str
    make: Callable[[], nn.Module]
    epochs: int
    tuning: int
    rate: float
    prunings: tuple[Pruning, ...]


_UNSTRUCTURED = Pruning("90% of the weights", lambda model: unstructured_masks(model, 0.9))
_FILTERS = Pruning("50% of the filters", lambda model: filter_masks(model, 0.5))
_HEADS = Pruning("50% of heads and neurons", lambda model: head_masks(model, 0.5))

SUBJECTS = (
    Subject("ConvNet", ConvNet, epochs=2, tuning=2, rate=2e-3, prunings=(_FILTERS, _UNSTRUCTURED)),
    Subject("Transformer", PatchTransformer, epochs=4, tuning=1, rate=1e-3, prunings=(_HEADS, _UNSTRUCTURED)),
)
"""What the demo runs; a row more is a line more in its result."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one pruned net became.

    Parameters
    ----------
    model, pruning
        Which net, and what was dropped.
    sparsity
        Fraction of zeros among the masked tensors.
    trained_accuracy, optimized_accuracy
        Fraction of the test digits read right by the unpruned net, and by the pruned, tuned and optimized one.
    error
        Largest difference from the masked dense model on the test digits, relative to its largest output.
    dense_ms, optimized_ms
        Median latency of the masked dense model under PyTorch and of the optimized one, taking turns.
    report
        The per-layer report.
    """

    model: str
    pruning: str
    sparsity: float
    trained_accuracy: float
    optimized_accuracy: float
    error: float
    dense_ms: float
    optimized_ms: float
    report: Report

    @property
    def speedup(self) -> float:
        """Dense latency divided by optimized latency."""
        return self.dense_ms / self.optimized_ms


def run(
    *,
    batch: int = 8,
    threads: int | None = None,
    subjects: tuple[Subject, ...] = SUBJECTS,
    say: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """The outcome of every pruning of every subject.

    Parameters
    ----------
    batch
        Digits per call when latency is measured.
    threads
        Threads of PyTorch and of the kernels; None leaves PyTorch's setting.
    subjects
        What to train, prune and optimize.
    say
        Gets a line about each step as it begins.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    digits = load_digits()
    return [outcome for subject in subjects for outcome in _try_subject(subject, digits, batch, say)]


def _try_subject(subject: Subject, digits: Digits, batch: int, say: Callable[[str], None]) -> list[Outcome]:
    say(f"{subject.title}: training")
    model = train(subject.make(), digits, epochs=subject.epochs, rate=subject.rate)
    return [_try_pruning(subject, pruning, model, digits, batch, say) for pruning in subject.prunings]


def _try_pruning(
    subject: Subject, pruning: Pruning, model: nn.Module, digits: Digits, batch: int, say: Callable[[str], None]
) -> Outcome:
    say(f"{subject.title}: dropping {pruning.title}, tuning the rest")
    masks = pruning.masks(model)
    masked = train(copy.deepcopy(model), digits, epochs=subject.tuning, rate=subject.rate / 2, masks=masks)
    say(f"{subject.title}: optimizing")
    images = digits.test_images[:batch]
    fast = sparta.optimize(masked, masks, example_inputs=(images,))
    with torch.no_grad():
        seconds = measure({"dense": lambda: masked(images), "fast": lambda: fast(images)}, budget=1, rounds=(20, 400))
    dense_ms, optimized_ms = 1e3 * seconds["dense"], 1e3 * seconds["fast"]
    return Outcome(
        model=subject.title,
        pruning=pruning.title,
        sparsity=_sparsity(masks),
        trained_accuracy=accuracy(model, digits),
        optimized_accuracy=accuracy(fast, digits),
        error=_checked_error(masked, fast, digits.test_images),
        dense_ms=dense_ms,
        optimized_ms=optimized_ms,
        report=replace(fast.report(), dense_ms=dense_ms, optimized_ms=optimized_ms),  # measured for longer, here
    )


def _sparsity(masks: Mapping[str, Tensor]) -> float:
    return 1 - sum(int(mask.sum()) for mask in masks.values()) / sum(mask.numel() for mask in masks.values())


@torch.no_grad()
def _checked_error(masked: nn.Module, fast: nn.Module, images: Tensor) -> float:
    error = relative_error(masked(images), fast(images))
    if error > TOLERANCE:
        message = f"the optimized model is off by {error:.1e} of its largest output; please report this as a bug"
        raise VerificationError(message)
    return error


def document(outcomes: list[Outcome]) -> Document:
    """The outcomes in words: one table for all, and the report of each."""
    reports = (_titled(outcome) for outcome in outcomes)
    return Document(
        title="sparta demo",
        facts=(("task", "handwritten digits, 8x8 pixels"), ("verdict", _verdict(outcomes)), *_machine(outcomes)),
        tables=(_summary(outcomes),),
        notes=tuple(
            f"{outcome.model} without {outcome.pruning}: not faster than dense here ({speedup_text(outcome.speedup)})."
            for outcome in outcomes
            if outcome.speedup < GAIN
        ),
        parts=tuple(reports),
    )


def _verdict(outcomes: list[Outcome]) -> str:
    faster = sum(outcome.speedup >= GAIN for outcome in outcomes)
    mean = math.exp(sum(math.log(outcome.speedup) for outcome in outcomes) / len(outcomes))
    worst = max(outcome.error for outcome in outcomes)
    return f"{faster} of {len(outcomes)} faster, {mean:.2f}x in the geometric mean; largest relative error {worst:.1e}"


def _machine(outcomes: list[Outcome]) -> tuple[tuple[str, str], ...]:
    return tuple(outcomes[0].report.machine.items())


_COLUMNS: tuple[tuple[Column, Callable[[Outcome], str]], ...] = (
    (Column("model"), lambda outcome: outcome.model),
    (Column("dropped"), lambda outcome: outcome.pruning),
    (Column("zeros", "right"), lambda outcome: percent_text(outcome.sparsity)),
    (
        Column("accuracy", "right"),
        lambda outcome: f"{outcome.trained_accuracy:.1%} -> {outcome.optimized_accuracy:.1%}",
    ),
    (Column("error", "right", optional=True), lambda outcome: f"{outcome.error:.1e}"),
    (Column("dense ms", "right"), lambda outcome: milliseconds_text(outcome.dense_ms)),
    (Column("ms", "right"), lambda outcome: milliseconds_text(outcome.optimized_ms)),
    (Column("speedup", "right"), lambda outcome: speedup_text(outcome.speedup)),
)


def _summary(outcomes: list[Outcome]) -> Table:
    columns = tuple(column for column, _ in _COLUMNS)
    rows = tuple(tuple(Cell(text(outcome)) for _, text in _COLUMNS) for outcome in outcomes)
    return Table("Whole model, one call", columns, rows)


def _titled(outcome: Outcome) -> Document:
    page = layout(outcome.report)
    return Document(f"{outcome.model} without {outcome.pruning}", page.facts, page.tables, page.notes)

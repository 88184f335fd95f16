"""What users hand over: arguments and results of any form, masks with mistakes, models still wrapped by a pruner."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import sparta
from tests.cases.support import FORCE, MaskedDense, Masks, Net, assert_same, check, complaints, rows, sequence, wrap


def mlp() -> nn.Sequential:
    """Two linears."""
    return sequence(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


class TwoInputs(nn.Module):
    """An optional second input and a switch that only a keyword sets."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(5, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor | None = None, *, flag: bool = True) -> Tensor:
        """One of four results."""
        h = self.a(x) if y is None else self.a(x) + self.b(y)
        return self.c(h.relu() if flag else h.sigmoid())


@pytest.mark.filterwarnings("ignore:the forward never uses")
class TestArguments:
    """Arguments by position and by name, tensors inside containers, values that choose the path."""

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [
            ((torch.randn(3, 6),), {}),
            ((torch.randn(3, 6), torch.randn(3, 5)), {}),
            ((torch.randn(3, 6),), {"y": torch.randn(3, 5), "flag": False}),
            ((), {"flag": False, "x": torch.randn(3, 6)}),
            ((torch.randn(3, 6), None), {"flag": True}),
        ],
        ids=["one", "two", "names", "only names", "none"],
    )
    def test_a24_two_inputs(self, args: Any, kwargs: dict[str, Any]) -> None:
        model = TwoInputs()
        check(model, rows(model, a=(0, 1), b=(1, 2)), *args, kwargs=kwargs, batches=(5,))

    @pytest.mark.parametrize(
        "form", [tuple, list, lambda call: {"x": call[0], "y": call[1]}], ids=["tuple", "list", "dict"]
    )
    def test_a24_forms_of_the_example(self, form: Callable[[Any], Any]) -> None:
        model = TwoInputs()
        masks = rows(model, a=(0, 1), b=(1, 2))
        fast = sparta.optimize(model, masks, form((torch.randn(3, 6), torch.randn(3, 5))), options=FORCE)
        x, y = torch.randn(4, 6), torch.randn(4, 5)
        expected = MaskedDense(model, masks)
        assert_same(expected(x, y), fast(x, y=y))
        assert_same(expected(x, flag=False), fast(x, flag=False))

    @pytest.mark.parametrize(
        ("args", "kwargs", "problem"),
        [
            ((), {}, "missing argument 'x'"),
            ((torch.randn(3, 6),), {"z": 1}, "unexpected argument 'z'"),
            ((torch.randn(3, 6), None, True), {}, "3 positional arguments given, 2 accepted"),
            ((torch.randn(3, 6),), {"x": torch.randn(3, 6)}, "'x' given twice"),
        ],
        ids=["missing", "unexpected", "surplus", "twice"],
    )
    def test_a24_calls_that_do_not_fit(self, args: Any, kwargs: dict[str, Any], problem: str) -> None:
        with pytest.raises(sparta.InputError, match=problem):
            sparta.optimize(TwoInputs(), None)(*args, **kwargs)

    def test_a24_tensors_inside_containers(self) -> None:
        class Batch(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.c = nn.Linear(6, 8), nn.Linear(8, 4)

            def forward(self, batch: dict[str, Any], *extra: Tensor, **named: Tensor) -> Tensor:
                h = sum(self.a(x) for x in batch["features"]) + self.a(batch["more"][0])
                return self.c(h + sum(extra) + named["shift"])

        model = Batch()
        x = [torch.randn(3, 6) for _ in range(4)]
        batch = {"features": x[:2], "more": (x[2], None, 3)}
        extra = (torch.randn(3, 8), torch.randn(3, 8))
        check(model, rows(model, a=(0, 5)), batch, *extra, kwargs={"shift": torch.randn(3, 8)})

    def test_a24_integers_and_scalars(self) -> None:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.table, self.c = nn.Embedding(9, 8), nn.Linear(8, 4)

            def forward(self, ids: Tensor, repeat: int = 1, scale: float = 1.0) -> Tensor:
                h = self.table(ids).mean(1) * scale
                for _ in range(repeat):
                    h = h.sin()
                return self.c(h)

        model = Scaled()
        masks: Masks = {"table": {"weight": torch.ones(9, 8).index_fill(1, torch.tensor([0, 4]), 0)}}
        fast = check(model, masks, torch.randint(0, 9, (2, 5)), 2, kwargs={"scale": 0.5})
        ids = torch.randint(0, 9, (4, 5))
        assert_same(MaskedDense(model, masks)(ids, 3, 2.0), fast(ids, 3, 2.0))


class Pair(NamedTuple):
    """A named tuple."""

    first: Tensor
    second: Any


@dataclass
class Detections:
    """A result class of a library that knows nothing of torch's trees."""

    boxes: Tensor
    scores: Tensor
    count: int = 3


class TestResults:
    """Results of any structure come back as they are."""

    def test_a23_nested_containers(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            h = m.a(x)
            pair = Pair(h.relu(), [m.c(h), None, 3])
            return {
                "pair": pair,
                "ordered": OrderedDict(b=h, a=m.c(h.relu())),
                "empty": (),
                "same": (h, h),
                "text": "x",
            }

        model = Net(run, a=nn.Linear(6, 8), c=nn.Linear(8, 4))
        fast = check(model, rows(model, a=(0, 1), c=(2,)), torch.randn(3, 6))
        result = fast(torch.randn(3, 6))
        assert type(result["pair"]) is Pair
        assert list(result["ordered"]) == ["b", "a"]

    def test_a23_a_dataclass(self) -> None:
        model = Net(lambda m, x: Detections(m.c(m.a(x).relu()), m.a(x)), a=nn.Linear(6, 8), c=nn.Linear(8, 4))
        masks = rows(model, a=(0, 1), c=(2,))
        fast = sparta.optimize(model, masks, example_inputs=torch.randn(3, 6), options=FORCE)
        assert not complaints(fast)
        x = torch.randn(5, 6)
        want, got = MaskedDense(model, masks)(x), fast(x)
        assert type(got) is Detections
        assert_same(vars(want), vars(got))

    def test_a23_the_input_itself_and_views_of_it(self) -> None:
        model = Net(lambda m, x: (x, x.t(), m.a(x)[:, 1:], x + 1), a=nn.Linear(6, 8))
        check(model, rows(model, a=(0, 1)), torch.randn(3, 6))

    def test_a23_an_input_changed_in_place(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            x.mul_(2)
            return m.c(m.a(x).relu_())

        model = Net(run, a=nn.Linear(6, 8), c=nn.Linear(8, 4))
        masks = rows(model, a=(0, 1))
        fast = sparta.optimize(model, masks, example_inputs=torch.randn(3, 6), options=FORCE)
        x = torch.randn(3, 6)
        seen, wanted = x.clone(), x.clone()
        assert_same(MaskedDense(model, masks)(wanted), fast(seen))
        assert torch.equal(seen, wanted)


class TestMasks:
    """Every accepted form means the same; mistakes are listed all at once, with names and fixes."""

    def test_a28_none_masks_nothing(self) -> None:
        model = Net(
            lambda m, x: m.c(torch.cat([m.a(x), m.b(x)], 1).relu()),
            a=nn.Conv2d(3, 4, 3, bias=False), b=nn.Conv2d(3, 4, 3, bias=False), c=nn.Conv2d(8, 4, 3),
        )  # fmt: skip
        masks: Masks = {"a": {"bias": None, "weight": torch.ones(4, 3, 3, 3)}, "b": {"bias": None, "weight": None}}
        masks["a"]["weight"][0] = 0  # type: ignore[index]
        check(model, masks, torch.randn(2, 3, 8, 8))

    @pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
    def test_a29_masks_from_another_device(self, device: str) -> None:
        model = mlp()
        masks = rows(model, **{"0": (0, 3)})
        moved = {
            name: {k: m.to(device).requires_grad_() for k, m in t.items() if m is not None} for name, t in masks.items()
        }
        fast = sparta.optimize(model, moved, example_inputs=torch.randn(3, 6), options=FORCE)
        x = torch.randn(5, 6)
        assert_same(MaskedDense(model, masks)(x), fast(x))

    def test_f11_all_mistakes_in_one_message(self) -> None:
        model = sequence(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 4))
        masks = {
            "0": {"weight": torch.ones(8, 1, 1, 1), "bias": torch.ones(9)},
            "2": {"weight": torch.full((4, 288), 0.5), "bias": torch.tensor([0.0, 1, float("nan"), 1])},
            "conv1": {"weight": torch.ones(8, 3, 3, 3)},
            "0.wieght": torch.ones(8, 3, 3, 3),
        }
        with pytest.raises(sparta.MaskError) as error:
            sparta.optimize(model, masks, example_inputs=torch.randn(2, 3, 8, 8))
        for part in (
            "6 problem",
            "0.weight",
            "(8, 1, 1, 1)",
            "0.bias",
            "0.5",
            "NaN",
            "conv1.weight",
            "did you mean 0.weight",
        ):
            assert part in str(error.value)

    @pytest.mark.parametrize("empty", [{}, None, {"0": {}}, {"0": {"weight": None}}], ids=str)
    def test_f11_empty_masks_mask_nothing(self, empty: Any) -> None:
        check(mlp(), empty, torch.randn(3, 6))

    @pytest.mark.parametrize("scores", ["softmax", "_output_0"])
    def test_a35_masks_on_activations_are_refused(self, scores: str) -> None:
        model = Net(
            lambda m, x: m.out((m.q(x) @ m.k(x).transpose(1, 2)).softmax(-1) @ m.v(x)),
            **{name: nn.Linear(6, 6) for name in ("q", "k", "v", "out")},
        )
        masks = {"q": {scores: torch.ones(5, 5).tril()}}
        with pytest.raises(sparta.MaskError, match=f"q.{scores}") as error:
            sparta.optimize(model, masks, example_inputs=torch.randn(2, 5, 6))
        assert "1 problem" in str(error.value)

    def test_a24_masks_of_a_module_the_call_never_reaches(self) -> None:
        model = Net(lambda m, x: m.c(m.a(x)), a=nn.Linear(6, 8), c=nn.Linear(8, 4), aux=nn.Linear(8, 3))
        masks = rows(model, a=(0,), aux=(1,))
        with pytest.warns(UserWarning, match=r"never uses aux\.bias, aux\.weight"):
            fast = sparta.optimize(model, masks, example_inputs=torch.randn(3, 6), options=FORCE)
        x = torch.randn(5, 6)
        assert_same(MaskedDense(model, masks)(x), fast(x))


class TestWrappedModels:
    """A model that a pruner still wraps is read through its wrappers and left as it is."""

    @pytest.mark.parametrize("given", ["masks", "nothing"])
    @pytest.mark.parametrize("called", [False, True], ids=["fresh", "called"])
    def test_a30_the_wrappers_masks_count(self, called: bool, given: str) -> None:
        model = sequence(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, bias=False))
        masks = rows(model, **{"0": (0, 3), "3": (1,)})
        expected = MaskedDense(copy.deepcopy(model), masks)
        wrap(model, masks)
        x = torch.randn(2, 3, 8, 9)
        if called:
            model.eval()(x)
            with pytest.raises(RuntimeError, match="graph leaves"):
                copy.deepcopy(model)
        names = list(model.state_dict())
        fast = sparta.optimize(model, masks if given == "masks" else None, example_inputs=x, options=FORCE)
        assert list(model.state_dict()) == names
        assert hasattr(model[0], "_nni_wrapper")
        fresh = torch.randn(3, 3, 8, 9)
        assert_same(expected(fresh), fast(fresh))
        assert not any("wrapper" in name for name in fast.state_dict())

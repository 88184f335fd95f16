"""What `fold` makes of small models: before and expected, always with the outputs compared."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparta.propagation import annotate
from sparta.propagation.engine import propagate
from sparta.propagation.folding import fold
from tests.propagation.folds import (
    HALF,
    IMAGE,
    TOKENS,
    Chain,
    conv,
    dead_rows,
    error,
    fold_captured,
    fold_traced,
    norm,
    operators,
    shapes,
)
from tests.propagation.tracing import trace

# ------------------------------------------------------------------------------------- constants and borders


def test_a_batch_norm_disappears_into_its_convolution() -> None:
    folded = fold_traced(Chain(conv(3, 8, bias=False), norm(8), nn.ReLU()), {}, torch.randn(IMAGE))
    assert operators(folded) == ["conv2d", "relu"]


def test_a_batch_norm_of_a_used_convolution_stays() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = conv(3, 8), norm(8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return y + self.norm(y)

    folded = fold_traced(Twice(), {}, torch.randn(IMAGE))
    assert operators(folded) == ["conv2d", "batch_norm", "add"]


def test_the_shift_of_a_dead_channel_moves_into_the_next_bias() -> None:
    model = Chain(conv(3, 8, bias=False), norm(8), nn.Sigmoid(), nn.Conv2d(8, 4, 3))
    folded = fold_traced(model, model.masks, torch.randn(IMAGE))
    assert operators(folded) == ["conv2d", "sigmoid", "conv2d"]
    assert shapes(folded)["3.weight"] == (4, 4, 3, 3)
    assert folded.removed == {"0.weight": ((8, 3, 3, 3), (4, 3, 3, 3)), "3.weight": ((4, 8, 3, 3), (4, 4, 3, 3))}


def test_padding_makes_a_constant_channel_a_map() -> None:
    model = Chain(conv(3, 8), nn.Sigmoid(), conv(8, 4))
    folded = fold_traced(model, model.masks, torch.randn(IMAGE))
    assert operators(folded) == ["conv2d", "sigmoid", "conv2d", "add"]
    assert shapes(folded)["2.weight"] == (4, 4, 3, 3)


@pytest.mark.parametrize("layer", [conv(8, 4, bias=False), nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1)])
def test_every_kind_of_convolution_takes_maps(layer: nn.Module) -> None:
    model = Chain(conv(3, 8), nn.Hardsigmoid(), layer)
    folded = fold_captured(model, model.masks, torch.randn(IMAGE))
    assert operators(folded)[-1] == "add"


def test_positions_that_differ_get_an_extra_addition() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.position, self.out = nn.Linear(8, 8), nn.Parameter(torch.randn(1, 5, 8)), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.sigmoid(self.embed(x) + self.position))

    model = Positions()
    folded = fold_captured(model, {"embed": dead_rows(model.embed, HALF)}, torch.randn(TOKENS))
    assert operators(folded) == ["linear", "add", "sigmoid", "linear", "add"]
    assert shapes(folded)["position"] == (1, 5, 4)


def test_an_all_zero_layer_leaves_its_consumers_constant() -> None:
    model = nn.Sequential(conv(3, 8), nn.GELU(), conv(8, 4), nn.Flatten(1), nn.Linear(324, 5))
    folded = fold_captured(model, {"0": dead_rows(model[0], range(8), bias=False)}, torch.randn(IMAGE))
    assert set(operators(folded)) == {"sym_size", "expand"}
    assert folded.removed["0.weight"] == ((8, 3, 3, 3), (0, 0, 0, 0))


# ------------------------------------------------------------------------------------------- outputs, inputs


def test_outputs_keep_their_shape() -> None:
    model = Chain(conv(3, 8))
    folded = fold_captured(model, model.masks, torch.randn(IMAGE))
    assert shapes(folded)["0.weight"] == (8, 3, 3, 3), "scattering would cost more than four dead rows"


def test_large_outputs_are_scattered() -> None:
    layer = nn.Linear(512, 512)
    folded = fold_captured(layer, {"": dead_rows(layer, range(1, 512, 2))}, torch.randn(64, 512))
    assert shapes(folded) == {"weight": (256, 512), "bias": (256,)}
    assert operators(folded)[-1] == "index_select"


def test_masked_columns_are_selected_from_the_input() -> None:
    layer = nn.Linear(512, 512)
    mask = torch.ones(512, 512, dtype=torch.bool)
    mask[:, ::2] = False
    folded = fold_captured(layer, {"": {"weight": mask}}, torch.randn(64, 4, 512))
    assert shapes(folded)["weight"] == (512, 256)
    assert operators(folded) == ["flatten", "index_select", "reshape", "linear"]


def test_several_outputs_and_inputs_in_order() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, unused: Tensor, y: Tensor) -> dict[str, Any]:
            return {"second": (self.b(y), x), "first": [self.a(x)], "size": x.shape[0]}

    model = Many()
    folded = fold_captured(model, {"a": dead_rows(model.a, range(8))}, *(torch.randn(4, 8) for _ in range(3)))
    assert [n.name for n in folded.module.graph.find_nodes(op="placeholder")] == ["x", "unused", "y"]


# ---------------------------------------------------------------------------------------------- dtypes, module


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_are_kept(dtype: torch.dtype) -> None:
    model = Chain(nn.Linear(8, 8), nn.Sigmoid(), nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(dtype)
    annotated = annotate(trace(model.eval(), torch.randn(TOKENS, dtype=dtype)), model.masks)
    folded = fold(propagate(annotated))
    tolerance = 4 * torch.finfo(dtype).eps
    assert error(folded, annotated, torch.randn(TOKENS, dtype=dtype)) < tolerance
    assert {buffer.dtype for buffer in folded.module.buffers() if buffer.is_floating_point()} == {dtype}


def test_the_module_is_plain_pytorch() -> None:
    model = Chain(conv(3, 8), norm(8), nn.ReLU(), conv(8, 4))
    folded = fold_captured(model, model.masks, torch.randn(IMAGE))
    x = torch.randn(4, 3, 9, 9)
    expected = folded.module(x)[0]
    module = copy.deepcopy(folded.module).train().eval()
    torch.testing.assert_close(module(x)[0], expected)
    exported = torch.export.export(module, (x,)).module()
    torch.testing.assert_close(exported(x)[0], expected)


def test_nodes_say_what_they_stand_for() -> None:
    model = Chain(conv(3, 8), norm(8), nn.Sigmoid(), conv(8, 4))
    folded = fold_captured(model, model.masks, torch.randn(IMAGE))
    found = {node.meta["source"]: node.meta["module"] for node in folded.module.graph.nodes if "source" in node.meta}
    assert found["conv2d"] == "0"
    assert found["conv2d_1"] == "3"

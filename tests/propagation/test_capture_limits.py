"""What capture does at its limits: state, data-dependent code, module-wise capture, and the caches of transformers."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, fx, nn

from sparta.propagation import capture, capture_tree, interpret, masked
from sparta.tesa import CaptureError
from tests.propagation.captures import assert_same


class Branch(nn.Module):
    """A real data-dependent branch around parts that are graphs; one part counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.taken, self.other, self.again = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.counting = Counting()
        self.shared = self.taken

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y = self.taken(y) if float(y.sum()) > -1e9 else self.other(y)
        return self.counting(self.shared(y)) + self.again(y) + self.again(y[None])[0]


class Counting(nn.Module):
    """Changes a buffer in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.inner(x)


def test_data_dependent_code_is_explained_shortly(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CaptureError) as error:
        capture(Branch(), (torch.randn(3, 4),))
    message = str(error.value)
    assert "cannot capture Branch at " in message
    assert "in forward" in message
    assert "Fix: " in message
    assert len(message) < 700
    assert capfd.readouterr() == ("", "")


def test_state_that_changes_is_refused_and_restored() -> None:
    net = Counting()
    with pytest.raises(CaptureError, match=r"changes count in place"):
        capture(net, (torch.randn(3, 4),))
    assert net.count == 0
    with pytest.raises(CaptureError, match="changes an argument in place"):
        capture(InPlace(), (torch.randn(3, 4),))


class InPlace(nn.Module):
    """Writes to its argument."""

    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1)


def test_module_wise_capture_keeps_the_largest_regions() -> None:
    net = Branch()
    regions = capture_tree(net, (torch.randn(3, 4),))
    assert regions.keys() == {"body", "taken", "counting.inner"}
    assert regions["body"].names["p_0_weight"] == "0.weight"
    assert regions["body"].tensors["p_0_weight"] is net.body[0].weight
    assert net.counting.count == 0
    assert net.training
    assert not net.body._forward_pre_hooks
    assert_same(net.body, regions["body"], (torch.randn(9, 4),), {})


def test_module_wise_capture_reports_a_failing_example() -> None:
    with pytest.raises(CaptureError, match="cannot capture Branch"):
        capture_tree(Branch(), (torch.randn(3, 5),))


def concatenated(node: fx.Node) -> list[fx.Node]:
    """What a concatenation joins; nothing for other nodes."""
    return list(node.args[0]) if node.target is torch.ops.aten.cat.default else []


@pytest.fixture(scope="module")
def gpt2() -> nn.Module:
    """A tiny language model with a cache."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        config = transformers.GPT2Config(
            n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=16, bos_token_id=0, eos_token_id=0
        )
        model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


@pytest.mark.filterwarnings("ignore")
def test_caches_come_and_go(gpt2: nn.Module) -> None:
    ids = torch.randint(0, 20, (1, 5), generator=torch.Generator().manual_seed(0))
    first = capture(gpt2, (), {"input_ids": ids})
    assert first.aliases["lm_head.weight"] == first.aliases["transformer.wte.weight"]
    assert first.tensors["p_transformer_wte_weight"] is gpt2.lm_head.weight
    prompt = interpret(first, first.tensors, ids)
    assert torch.allclose(prompt.logits, masked(gpt2)(ids).logits, atol=1e-5)
    second = capture(gpt2, (), {"input_ids": ids[:, :1], "cache": prompt.cache})
    assert second.user_inputs[1] == "cache_key_cache_0"
    assert all(dims == (0,) for dims in second.dynamic)
    assert all(part.meta["val"].dim() == 4 for node in second.graph.nodes for part in concatenated(node))
    step = interpret(second, second.tensors, ids[:, :1], prompt.cache)
    whole = masked(gpt2)(torch.cat([ids, ids[:, :1]], 1))
    assert torch.allclose(step.logits[:, -1], whole.logits[:, -1], atol=1e-5)
    assert type(step.cache) is type(whole.cache)

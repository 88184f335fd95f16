"""Pruned transformers: heads, normalization and softmax over pruned features, ties, structured outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.cases.support import Masks, Net, assert_same, check, fine, rows, sequence

HEADS, WIDTH = 4, 16
"""Four heads of four features."""

PRUNED_ROWS = {
    "one head": range(4, 8),
    "two heads": (*range(4), *range(12, 16)),
    "inside heads": (0, 5, 10),
    "across a border": range(2, 7),
    "head and a half": range(6),
    "all": range(16),
}

Mix = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys, values of all heads -> what the heads return."""


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention spelled out, the scale from the head dimension as models write it."""
    return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in one operator."""
    return functional.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention to earlier tokens only."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention without softmax over tokens."""
    return q.softmax(-1) @ (k.softmax(-2).transpose(-1, -2) @ v)


MIXES: tuple[Mix, ...] = (by_hand, fused, causal, linear)


def attention() -> Net:
    """Self-attention with separate projections and a view to heads, mixed in every way."""

    def run(m: Any, x: Tensor) -> Any:
        batch, length, _ = x.shape
        q, k, v = (p(x).view(batch, length, HEADS, -1).transpose(1, 2) for p in (m.q, m.k, m.v))
        return [m.out(mix(q, k, v).transpose(1, 2).reshape(batch, length, -1)) for mix in MIXES]

    return Net(run, **{name: nn.Linear(WIDTH, WIDTH) for name in ("q", "k", "v", "out")})


def tokens(width: int = WIDTH) -> Tensor:
    """Two random sequences."""
    return torch.randn(2, 5, width)


class TestHeads:
    """Whole heads may go; rows inside heads stay in place, since views count features."""

    @pytest.mark.parametrize("pruned", PRUNED_ROWS)
    @pytest.mark.slow
    def test_a17_the_same_rows_of_all_projections(self, pruned: str) -> None:
        model = attention()
        check(model, rows(model, q=PRUNED_ROWS[pruned], k=PRUNED_ROWS[pruned], v=PRUNED_ROWS[pruned]), tokens())

    @pytest.mark.parametrize("bias", ["masked", "none"])
    @pytest.mark.slow
    def test_a17_different_rows_of_each_projection(self, bias: str) -> None:
        model = attention()
        check(model, rows(model, bias, q=range(4), k=(0, 5), v=range(8, 13), out=(1,)), tokens())

    def test_a17_one_matrix_for_queries_keys_and_values(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            batch, length, _ = x.shape
            q, k, v = m.qkv(x).reshape(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
            return m.out(fused(q, k, v).transpose(1, 2).flatten(2))

        model = Net(run, qkv=nn.Linear(WIDTH, 3 * WIDTH), out=nn.Linear(WIDTH, WIDTH))
        head = [offset + feature for offset in (0, 16, 32) for feature in range(4, 8)]
        check(model, rows(model, qkv=head), tokens())
        check(model, rows(model, qkv=(0, 17, 18, *range(40, 48))), tokens())

    def test_b12_pooled_attention_with_a_group_for_each_head(self) -> None:
        def heads(m: Any, x: Tensor, name: str) -> Any:
            batch, _, height, width = x.shape
            y = m.get_submodule(f"pool_{name}")(m.get_submodule(name)(x).view(batch * HEADS, -1, height, width))
            return y.flatten(2).view(batch, HEADS, -1, y.shape[-1] * y.shape[-2]).transpose(2, 3)

        def run(m: Any, x: Tensor) -> Any:
            y = fused(*(heads(m, x, name) for name in "qkv"))
            return m.out(y.transpose(1, 2).flatten(2))

        pools = {
            f"pool_{n}": nn.Conv2d(4, 4, 3, stride=s, padding=1, groups=4)
            for n, s in zip("qkv", (1, 2, 2), strict=True)
        }
        model = Net(run, **{n: nn.Conv2d(3, WIDTH, 1) for n in "qkv"}, **pools, out=nn.Linear(WIDTH, 6))
        pruned = range(4, 8)
        check(model, rows(model, q=pruned, k=pruned, v=pruned, pool_v=(0,)), torch.randn(2, 3, 4, 6))

    def test_b14_decomposed_relative_positions(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            batch, height, width, _ = x.shape
            q, k, v = m.qkv(x).view(batch, height * width, 3, HEADS, 4).permute(2, 0, 3, 1, 4).unbind(0)
            grid = q.view(batch, HEADS, height, width, 4)
            bias = torch.einsum("nbhwc,hkc->nbhwk", grid, m.rel_h)[..., :, None]
            bias = bias + torch.einsum("nbhwc,wkc->nbhwk", grid, m.rel_w)[..., None, :]
            scores = q @ k.transpose(-1, -2) + bias.reshape(batch, HEADS, height * width, height * width)
            return m.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, height, width, -1))

        model = Net(
            run, qkv=nn.Linear(8, 3 * WIDTH), out=nn.Linear(WIDTH, 8),
            rel_h=nn.Parameter(torch.randn(3, 3, 4)), rel_w=nn.Parameter(torch.randn(4, 4, 4)),
        )  # fmt: skip
        check(model, rows(model, qkv=(*range(4), *range(16, 20), *range(32, 36), 9)), torch.randn(2, 3, 4, 8))


class TestStatistics:
    """Norms and softmax over a pruned dimension count the pruned elements too."""

    @pytest.mark.parametrize("bias", ["masked", "none"])
    def test_f03_layernorm(self, bias: str) -> None:
        model = Net(
            lambda m, x: (m.c(m.affine(m.a(x))), m.c(m.plain(m.a(x))), m.both(m.a(x))),
            a=nn.Linear(6, 12), c=nn.Linear(12, 4), affine=nn.LayerNorm(12),
            plain=nn.LayerNorm(12, elementwise_affine=False), both=nn.LayerNorm((5, 12)),
        )  # fmt: skip
        check(model, rows(model, bias, a=(0, 3, 4)), tokens(6))

    @pytest.mark.parametrize("pruned", [(0, 3, 4), range(1, 12)], ids=["three", "all but one"])
    def test_f03_other_norms(self, pruned: Iterable[int]) -> None:
        def run(m: Any, x: Tensor) -> Any:
            h = m.a(x)
            results = [norm(h) for norm in m.norms] + [functional.normalize(h, dim=-1), functional.normalize(h, dim=1)]
            return [m.c(result) for result in results] + [m.c(m.groups(h.flatten(0, 1)))]

        norms = (nn.RMSNorm(12), nn.Softmax(-1), nn.LogSoftmax(-1), nn.Softmax(1), nn.Softmin(-1))
        model = Net(run, a=nn.Linear(6, 12), c=nn.Linear(12, 4), norms=nn.ModuleList(norms), groups=nn.GroupNorm(3, 12))
        check(model, rows(model, a=pruned), tokens(6))

    def test_f03_everything_normalized_is_pruned(self) -> None:
        model = sequence(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4))
        check(model, rows(model, **{"0": range(8)}), torch.randn(7, 6))

    @pytest.mark.parametrize("bias", ["masked", "none"])
    def test_f04_softmax_over_pruned_logits(self, bias: str) -> None:
        model = Net(
            lambda m, x: (m.c(m.a(x).softmax(-1)), m.a(x).log_softmax(-1), m.a(x).argmax(-1), m.a(x).topk(3).values),
            a=nn.Linear(6, 12), c=nn.Linear(12, 4),
        )  # fmt: skip
        check(model, rows(model, bias, a=(0, 3, 4)), torch.randn(7, 6))

    @pytest.mark.parametrize("bias", ["masked", "kept"])
    def test_f04_reductions_over_the_pruned_dimension(self, bias: str) -> None:
        def run(m: Any, x: Tensor) -> Any:
            h = m.a(x).sigmoid()
            reductions = (torch.sum, torch.mean, torch.amax, torch.prod, torch.std, torch.logsumexp)
            return [h * reduce(h, dim=-1, keepdim=True) for reduce in reductions] + [h.cumsum(-1), h.sort(-1).values]

        model = Net(run, a=nn.Linear(6, 12))
        check(model, rows(model, bias, a=(0, 3, 4)), torch.randn(7, 6))


class Encoder(nn.Module):
    """Two post-norm encoder layers; only the first token is read."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH)
        self.layers = nn.ModuleList(nn.ModuleDict({
            **{name: nn.Linear(WIDTH, WIDTH) for name in ("q", "k", "v", "out")},
            "up": nn.Linear(WIDTH, 24), "down": nn.Linear(24, WIDTH),
            "n1": nn.LayerNorm(WIDTH), "n2": nn.LayerNorm(WIDTH),
        }) for _ in range(2))  # fmt: skip
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Any]:
        """Logits of the first token and all hidden states."""
        x, states = self.embed(ids), []
        bias = None if attention_mask is None else (1.0 - attention_mask[:, None, None, :].float()) * -1e4
        for layer in self.layers:
            q, k, v = (layer[name](x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in "qkv")
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            x = layer["n1"](x + layer["out"](y.transpose(1, 2).flatten(2)))
            x = layer["n2"](x + layer["down"](functional.gelu(layer["up"](x))))
            states.append(x)
        return {"logits": self.head(x[:, 0]), "states": tuple(states)}


class TestWholeModels:
    """Encoders and decoders as libraries write them."""

    @pytest.mark.parametrize("padding", [False, True], ids=["full", "padded"])
    @pytest.mark.slow
    def test_f14_layers_without_masks_keep_their_rows(self, padding: bool) -> None:
        model = Encoder()
        masks = rows(model, layers__0__up=range(6), layers__1__v=range(4, 8), layers__1__up=(0, 1))
        masks |= {"layers.1.out": {"weight": torch.ones(WIDTH, WIDTH).index_fill(1, torch.arange(4, 8), 0)}}
        kwargs = {"attention_mask": torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])} if padding else {}
        fast = check(model, masks, torch.randint(0, 20, (2, 5)), kwargs=kwargs, batches=() if padding else (3,))
        removed = fast.report().removed
        assert removed["layers.0.up.weight"] == ((24, 16), (18, 16))
        assert "layers.0.q.weight" not in removed

    @pytest.mark.parametrize("density", [0.05, 0.4])
    @pytest.mark.slow
    def test_a17_fine_grained_encoder(self, density: float) -> None:
        model = Encoder()
        check(model, fine(model, density), torch.randint(0, 20, (2, 5)))

    def test_a21_torchs_own_encoder_layer(self) -> None:
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, activation="gelu")
        model = sequence(layer, nn.Linear(WIDTH, 4))
        masks = rows(model, **{"0__linear1": range(7), "0__linear2": (3,)})
        masks["0.self_attn"] = {"in_proj_weight": (torch.rand(3 * WIDTH, WIDTH) < 0.3).float()}
        check(model, masks, tokens())

    def test_a21_multihead_attention_with_weights(self) -> None:
        model = Net(
            lambda m, x: m.attention(h := m.a(x), h, h),
            a=nn.Linear(6, WIDTH),
            attention=nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
        )
        check(model, rows(model, a=(0, 1, 9), attention__out_proj=(2, 3)), tokens(6))

    @pytest.mark.parametrize("which", ["emb", "head", "both"])
    def test_f13_tied_embedding_and_head(self, which: str) -> None:
        model = Net(
            lambda m, x: m.head(m.fc(m.emb(x)).relu()),
            emb=nn.Embedding(20, 8),
            fc=nn.Linear(8, 8),
            head=nn.Linear(8, 20, bias=False),
        )
        model.head.weight = model.emb.weight
        mask = (torch.rand(20, 8) < 0.4).float()
        names = ("emb", "head") if which == "both" else (which,)
        check(model, {name: {"weight": mask} for name in names} | rows(model, fc=(1, 2)), torch.randint(0, 20, (2, 5)))


def gpt2(**settings: Any) -> nn.Module:
    """A tiny GPT-2 with random weights and biases."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=HEADS, n_embd=WIDTH, n_positions=16, vocab_size=30, **settings)
    model = transformers.GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    return model  # type: ignore[no-any-return]


def gpt2_masks(model: nn.Module) -> Masks:
    """Half the hidden features of one block, and scattered weights; these layers keep weights transposed."""
    narrow = torch.ones(WIDTH, 4 * WIDTH)
    narrow[:, ::2] = 0
    return {
        "transformer.h.0.mlp.c_fc": {"weight": narrow, "bias": narrow[0].clone()},
        "transformer.h.1.attn.c_attn": {"weight": (torch.rand(WIDTH, 3 * WIDTH) < 0.3).float(), "bias": None},
    }


@pytest.mark.parametrize("cache", [False, True], ids=["plain", "cache"])
@pytest.mark.slow
def test_a23_gpt2_returns_its_dictionary(cache: bool) -> None:
    model = gpt2(use_cache=cache, output_hidden_states=True)
    ids = torch.randint(0, 30, (2, 6))
    fast = check(model, gpt2_masks(model), ids, same=same_output)
    assert list(fast(ids)) == list(model(ids))


def same_output(want: Any, got: Any) -> None:
    """Asserts the same type and tensors."""
    assert type(got) is type(want)
    assert_same(*(_without_caches(output) for output in (want, got)))


def _without_caches(output: Any) -> dict[str, Any]:
    """The output with each cache as the list of what its layers hold."""
    return {
        name: [(layer.keys, layer.values) for layer in value.layers] if hasattr(value, "layers") else value
        for name, value in output.items()
    }

"""Pruned channels through convolutional structures: nothing a mask leaves behind is lost, and no shape changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.cases.support import BIAS_FORMS, Masks, Net, check, fine, rows, sequence

ACTIVATIONS = (torch.relu, torch.sigmoid, functional.gelu, functional.hardswish, functional.softplus, functional.elu)


def conv(inputs: int, outputs: int, kernel: int = 3, **settings: Any) -> nn.Conv2d:
    """A convolution that keeps height and width unless told otherwise."""
    return nn.Conv2d(inputs, outputs, kernel, **{"padding": kernel // 2, **settings})


def image(channels: int = 3, size: int = 9) -> Tensor:
    """Two random images."""
    return torch.randn(2, channels, size, size + 1)


def everything(model: nn.Module, *names: str) -> Masks:
    """Masks that prune all of these modules, bias too."""
    return {
        name: {key: torch.zeros_like(p) for key, p in model.get_submodule(name).named_parameters()} for name in names
    }


class TestConstantsOfDeadChannels:
    """A dead channel is a constant, rarely zero, behind BatchNorm, a bias or an activation."""

    @pytest.mark.parametrize("pruned", [(0, 3), (0, 1, 2, 4, 5, 6, 7), range(8)], ids=["two", "seven", "all"])
    def test_a01_batchnorm_shift_reaches_the_consumer(self, pruned: Iterable[int]) -> None:
        def run(m: Any, x: Tensor) -> Any:
            return [
                consumer(act(norm(m.a(x))))
                for act, norm, consumer in zip(ACTIVATIONS, m.norms, m.consumers, strict=True)
            ]

        norms, consumers = nn.ModuleList(), nn.ModuleList()
        for _ in ACTIVATIONS:
            norms.append(nn.BatchNorm2d(8))
            consumers.append(conv(8, 4))
        model = Net(run, a=conv(3, 8, bias=False), norms=norms, consumers=consumers)
        fast = check(model, rows(model, a=pruned), image())
        assert fast.report().removed

    @pytest.mark.parametrize("target", ["weight", "bias", "both"])
    def test_a01_masks_on_batchnorm_itself(self, target: str) -> None:
        model = sequence(conv(3, 8), nn.BatchNorm2d(8), nn.SiLU(), conv(8, 4))
        mask = (torch.arange(8) % 3 > 0).float()
        targets = ["weight", "bias"] if target == "both" else [target]
        check(model, {"1": dict.fromkeys(targets, mask)}, image())

    def test_a02_masked_filters_stay_what_they_are_after_training(self) -> None:
        model = sequence(
            conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 8), nn.BatchNorm2d(8), nn.ReLU(),
            conv(8, 8, bias=False), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 4),
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            model(image()).square().mean().backward()
            optimizer.step()
        assert model.training
        check(model, rows(model, **{"0": (0, 5), "3": (1, 2, 3), "6": (0, 7)}), image())

    @pytest.mark.parametrize("bias", ["masked", "none"])
    def test_f01_activations_that_do_not_keep_zero(self, bias: str) -> None:
        model = Net(
            lambda m, x: m.c(m.a(x).sigmoid()) + m.d(torch.cos(m.b(x))),
            a=conv(3, 8),
            b=conv(3, 8),
            c=conv(8, 4),
            d=conv(8, 4),
        )
        check(model, rows(model, bias, a=(0, 3), b=(1, 2, 3)), image())

    def test_f01_borders_of_padding_see_zero_not_the_constant(self) -> None:
        model = Net(
            lambda m, x: (m.same(h := m.a(x).exp()), m.wide(h), m.stride(h), m.pool(h), m.average(h)),
            a=conv(3, 6), same=conv(6, 4, 5), wide=conv(6, 4, padding=3, dilation=2),
            stride=conv(6, 4, stride=2), pool=nn.MaxPool2d(3, 2, 1), average=nn.AvgPool2d(3, 2, 1),
        )  # fmt: skip
        check(model, rows(model, "kept", a=(0, 2, 5)), image())


class TestEmptyLayers:
    """A layer of which nothing is left is a constant; nothing has zero channels."""

    @pytest.mark.parametrize("bias", BIAS_FORMS)
    def test_a14_a_whole_convolution(self, bias: str) -> None:
        model = Net(
            lambda m, x: m.c(m.a(x).relu()) + m.d(m.b(x).sigmoid()),
            a=conv(3, 8),
            b=conv(3, 8),
            c=conv(8, 4),
            d=conv(8, 4),
        )
        check(model, rows(model, bias, a=range(8), b=range(8)), image())

    @pytest.mark.parametrize("seed", range(3))
    def test_a15_small_layers_at_high_sparsity(self, seed: int) -> None:
        torch.manual_seed(seed)
        layers = [(conv(4, 4, bias=i % 2 == 0), nn.BatchNorm2d(4), nn.ReLU()) for i in range(4)]
        model = sequence(conv(3, 4), *(layer for block in layers for layer in block), conv(4, 2))
        check(model, fine(model, 0.05), image())

    def test_a15_every_layer_is_empty(self) -> None:
        model = sequence(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 4), nn.Flatten(), nn.Linear(360, 5))
        check(model, everything(model, "0", "3", "5"), image())

    @pytest.mark.parametrize("name", ["a", "b"])
    def test_a14_one_branch_of_a_residual(self, name: str) -> None:
        model = Net(
            lambda m, x: m.c(m.norm(m.a(x) + m.b(x)).relu()),
            a=conv(3, 8),
            b=conv(3, 8),
            norm=nn.BatchNorm2d(8),
            c=conv(8, 4),
        )
        check(model, everything(model, name), image())


class TestOutputs:
    """What leaves the model keeps its shape, whatever is pruned."""

    @pytest.mark.parametrize("bias", ["masked", "none"])
    def test_a16_the_last_layers(self, bias: str) -> None:
        model = Net(
            lambda m, x: (h := m.a(x).relu(), m.c(h), m.fc(h.mean((2, 3))), m.c(h).relu().mean((2, 3), keepdim=True)),
            a=conv(3, 8), c=conv(8, 6), fc=nn.Linear(8, 10),
        )  # fmt: skip
        check(model, rows(model, bias, a=(1, 2), c=(0, 1, 2), fc=(3, 9)), image())

    def test_a16_a_pooled_classifier(self) -> None:
        model = sequence(conv(3, 8), nn.ReLU(), conv(8, 10, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        fast = check(model, rows(model, **{"0": (0, 1), "2": range(5)}), image())
        assert fast(image()).shape == (2, 10)

    def test_a16_nothing_is_left_of_the_output(self) -> None:
        model = sequence(conv(3, 8), nn.ReLU(), conv(8, 4))
        check(model, everything(model, "2"), image())


class TestResidual:
    """Additions and products of branches that were pruned differently."""

    @staticmethod
    def stage() -> Net:
        """Stem, two residual blocks with BatchNorm, head."""

        def run(m: Any, x: Tensor) -> Any:
            x = m.n0(m.stem(x)).relu()
            x = (m.n2(m.c2(m.n1(m.c1(x)).relu())) + x).relu()
            x = (m.n4(m.c4(m.n3(m.c3(x)).relu())) + m.down(x)).relu()
            return m.fc(x.mean((2, 3)))

        norms = {f"n{i}": nn.BatchNorm2d(8 if i < 3 else 12) for i in range(5)}
        return Net(
            run, stem=conv(3, 8, bias=False), c1=conv(8, 8, bias=False), c2=conv(8, 8, bias=False),
            c3=conv(8, 12, stride=2, bias=False), c4=conv(12, 12, bias=False), down=conv(8, 12, 1, stride=2),
            fc=nn.Linear(12, 5), **norms,
        )  # fmt: skip

    @pytest.mark.parametrize(
        "pruned",
        [
            dict(stem=(0, 1), c2=(0, 1), c1=(2, 3), c4=(0, 5), down=(0, 5)),
            dict(stem=(0, 1), c2=(1, 2), c1=range(7), c3=(0, 11), c4=(3, 4), down=(4, 5)),
            dict(c2=range(8), c4=range(12)),
        ],
        ids=["equal", "unequal", "empty"],
    )
    def test_a03_residual_stage(self, pruned: dict[str, Any]) -> None:
        model = self.stage()
        check(model, rows(model, **pruned), image())

    @pytest.mark.parametrize("bias", ["masked", "kept"])
    def test_a04_only_common_rows_of_a_sum_go(self, bias: str) -> None:
        model = Net(lambda m, x: m.c(m.a(x) + m.b(x)), a=conv(3, 8), b=conv(3, 8), c=conv(8, 4))
        fast = check(model, rows(model, bias, a=(0, 1), b=(1, 2)), image())
        if bias == "masked":
            assert fast.report().removed["c.weight"] == ((4, 8, 3, 3), (4, 7, 3, 3))

    @pytest.mark.parametrize("bias", ["masked", "kept"])
    def test_a05_squeeze_and_excite(self, bias: str) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y = m.a(x).relu()
            return m.c(y * m.f2(m.f1(y.mean((2, 3), keepdim=True)).relu()).sigmoid())

        model = Net(run, a=conv(3, 8), f1=conv(8, 4, 1), f2=conv(4, 8, 1), c=conv(8, 4))
        check(model, rows(model, bias, a=(0, 1, 2), f1=(0,), f2=(2, 3)), image())

    def test_a05_products_of_branches(self) -> None:
        model = Net(
            lambda m, x: m.c(m.a(x) * m.b(x)) + m.c(m.a(x) / (1 + m.b(x) ** 2)) + m.c(torch.max(m.a(x), m.b(x))),
            a=conv(3, 8), b=conv(3, 8), c=conv(8, 4),
        )  # fmt: skip
        check(model, rows(model, a=(0, 1, 2), b=(2, 3)), image())

    def test_a12_inverted_residuals_pruned_without_any_agreement(self) -> None:
        def block(m: Any, x: Tensor, i: int) -> Any:
            h = m.get_submodule(f"norm{i}")(m.get_submodule(f"expand{i}")(x)).clamp(0, 6)
            h = functional.relu6(m.get_submodule(f"depthwise{i}")(h))
            return x + m.get_submodule(f"project{i}")(h)

        parts: dict[str, Any] = {"stem": conv(3, 8), "head": conv(8, 6, 1)}
        for i in range(2):
            parts |= {f"expand{i}": conv(8, 16, 1), f"norm{i}": nn.BatchNorm2d(16)}
            parts |= {f"depthwise{i}": conv(16, 16, groups=16), f"project{i}": conv(16, 8, 1)}
        model = Net(lambda m, x: m.head(block(m, block(m, m.stem(x), 0), 1)), **parts)
        pruned = dict(stem=(0,), expand0=(0, 1, 2), depthwise0=(2, 3), project0=(5,), expand1=(9,), depthwise1=range(8))
        check(model, rows(model, **pruned, project1=(0, 1)), image())


class TestRegroupedChannels:
    """Concatenation, splits, views and groups: an index follows its channel."""

    def test_a06_concatenation(self) -> None:
        model = Net(
            lambda m, x: m.c(torch.cat([m.a(x).relu(), m.b(x).relu()], 1)), a=conv(3, 8), b=conv(3, 5), c=conv(13, 4)
        )
        fast = check(model, rows(model, a=(1, 7)), image())
        assert fast.report().removed["c.weight"] == ((4, 13, 3, 3), (4, 11, 3, 3))

    def test_a06_nested_concatenation_with_the_input(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            for i in range(3):
                x = torch.cat([x, m.get_submodule(f"c{i}")(m.get_submodule(f"n{i}")(x).relu())], 1)
            return m.head(x)

        parts = {f"c{i}": conv(3 + 4 * i, 4) for i in range(3)} | {f"n{i}": nn.BatchNorm2d(3 + 4 * i) for i in range(3)}
        model = Net(run, **parts, head=conv(15, 2))
        check(model, rows(model, c0=(0, 1), c1=range(4), c2=(3,)), image())

    @pytest.mark.parametrize("pruned", [(0, 1, 2), (0, 4), (1, 2, 3, 4, 5), range(4)], ids=str)
    def test_a07_chunks(self, pruned: Iterable[int]) -> None:
        def run(m: Any, x: Tensor) -> Any:
            p, q = m.a(x).chunk(2, 1)
            return m.b(p) + m.c(q.sigmoid())

        model = Net(run, a=conv(3, 8), b=conv(4, 4), c=conv(4, 4))
        check(model, rows(model, a=pruned), image())

    def test_f06_every_way_to_split(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y = m.a(x)
            pairs = [
                torch.split(y, [4, 4], 1),
                torch.split(y, 4, 1),
                torch.tensor_split(y, 2, 1),
                (y[:, :4], y[:, 4:]),
                (y[:, ::2], y[:, 1::2]),
                y.unflatten(1, (2, 4)).unbind(1),
                (y.narrow(1, 4, 4), y.index_select(1, m.order)),
            ]
            return [m.b(p) * m.c(q) for p, q in pairs]

        model = Net(run, a=conv(3, 8), b=conv(4, 4), c=conv(4, 4))
        model.register_buffer("order", torch.tensor([3, 1, 1, 0]))
        check(model, rows(model, a=(0, 1, 5)), image())

    @pytest.mark.parametrize("pruned", [(0, 5), range(1, 8)], ids=str)
    def test_a08_flat_features_of_a_linear(self, pruned: Sequence[int]) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y = m.n(m.a(x)).relu()
            channels_first = [y.view(-1, 512), y.reshape(y.shape[0], -1), y.view(y.size(0), 8 * 8 * 8), y.flatten(1)]
            channels_last = [y.permute(0, 2, 3, 1).reshape(-1, 512), y.flatten(2).transpose(1, 2).flatten(1)]
            return [*map(m.first, channels_first), *map(m.last, channels_last)]

        model = Net(run, a=conv(3, 8), n=nn.BatchNorm2d(8), first=nn.Linear(512, 6), last=nn.Linear(512, 6))
        fast = check(model, rows(model, a=pruned), torch.randn(2, 3, 8, 8))
        for name in ("first.weight", "last.weight"):
            assert fast.report().removed[name] == ((6, 512), (6, 512 - 64 * len(pruned)))

    @pytest.mark.parametrize("pruned", [(0, 1, 2), (0, 4), range(4), range(1, 8)], ids=str)
    def test_a09_unbalanced_groups(self, pruned: Iterable[int]) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y = m.a(x).relu()
            return [m.heads[i](m.norms[i](grouped(y)).relu()) for i, grouped in enumerate(m.grouped)]

        shapes = ((2, 8), (8, 8), (8, 16), (4, 12))
        model = Net(
            run,
            a=conv(3, 8),
            grouped=nn.ModuleList([conv(8, outputs, groups=groups) for groups, outputs in shapes]),
            norms=nn.ModuleList([nn.BatchNorm2d(outputs) for _, outputs in shapes]),
            heads=nn.ModuleList([conv(outputs, 4) for _, outputs in shapes]),
        )
        masks = rows(model, a=pruned, grouped__0=(0, 1, 7), grouped__1=(2, 3), grouped__2=(2, 3, 4), grouped__3=(0, 3))
        check(model, masks, image())

    def test_a25_lists_of_features_and_lateral_additions(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            outs = [m.f1(x).relu()]
            outs.append(m.f2(outs[-1]).relu())
            outs.append(m.f3(outs[-1]).relu())
            a, b, c = outs
            up = functional.interpolate
            c = m.l3(c)
            b = m.l2(b) + up(c, size=b.shape[-2:])
            a = m.l1(a) + up(b, scale_factor=2.0, mode="bilinear", align_corners=False)
            return {"levels": [m.head(level) for level in (a, b, c)], "deep": (c,)}

        laterals = {f"l{i}": conv(8, 6, 1) for i in (1, 2, 3)}
        model = Net(run, f1=conv(3, 8), f2=conv(8, 8, stride=2), f3=conv(8, 8, stride=2), head=conv(6, 4), **laterals)
        pruned = dict(f1=(0, 1), f2=(1, 2), f3=(3,), l1=(0, 1), l2=(0, 1, 2), l3=(0, 5), head=(2,))
        check(model, rows(model, **pruned), torch.randn(2, 3, 16, 16))


class TestFreeParameters:
    """Parameters that no module owns follow the channels they scale."""

    @pytest.mark.parametrize("bias", ["masked", "none"])
    def test_a19_layer_scale(self, bias: str) -> None:
        model = Net(
            lambda m, x: m.c(m.a(x) * m.scale + x.mean(1, keepdim=True)),
            a=conv(3, 8),
            scale=nn.Parameter(torch.randn(1, 8, 1, 1)),
            c=conv(8, 4),
        )
        check(model, rows(model, bias, a=(0, 1)), image())

    def test_a19_convnext_block(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            x = m.stem(x)
            h = m.down(m.act(m.up(m.norm(m.depthwise(x).permute(0, 2, 3, 1)))))
            return m.head((x + (m.gamma * h).permute(0, 3, 1, 2)).mean((2, 3)))

        model = Net(
            run, stem=conv(3, 8, 4, stride=4, padding=0), depthwise=conv(8, 8, 7, groups=8), norm=nn.LayerNorm(8),
            up=nn.Linear(8, 32), act=nn.GELU(), down=nn.Linear(32, 8), head=nn.Linear(8, 5),
            gamma=nn.Parameter(torch.randn(8)),
        )  # fmt: skip
        pruned = dict(stem=(0, 1), depthwise=(1, 2), up=range(12), down=(0, 7))
        check(model, rows(model, **pruned), torch.randn(2, 3, 16, 20))

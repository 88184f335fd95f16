"""Small pruned models, their masked dense meaning, and `check`: the optimized model means the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

import sparta

Model = TypeVar("Model", bound=nn.Module)

Masks = dict[str, dict[str, Tensor | None]]
"""``{module: {"weight": mask, "bias": mask or None}}``, the form pruners write."""

FORCE: Mapping[str, Any] = {"measure": False}
"""Sparse kernels whether they pay or not: these tests are about exactness."""

BIAS_FORMS = ("masked", "kept", "none", "absent")
"""What a pruner may say about the bias of a pruned row: pruned too, kept, None, or nothing."""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.complex64: 1e-4}


class Net(nn.Module):
    """A model written at the place of its use: parts by name, and what a call does with them."""

    def __init__(self, run: Callable[[Any, Tensor], Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = run
        randomize(self)

    def forward(self, x: Tensor) -> Any:
        """Whatever `run` returns."""
        return self.run(self, x)


def sequence(*layers: nn.Module) -> nn.Sequential:
    """The layers one after the other, randomized."""
    return randomize(nn.Sequential(*layers))


@torch.no_grad()
def randomize(model: Model) -> Model:
    """`model` with statistics, gamma and beta of all norms drawn at random: defaults hide lost constants."""
    for module in model.modules():
        if isinstance(module, (_NormBase, nn.GroupNorm, nn.LayerNorm)):
            for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                if tensor.dtype.is_floating_point:
                    tensor.uniform_(0.5, 2) if name == "running_var" else tensor.normal_()
    return model


def rows(model: nn.Module, bias: str = "masked", /, **pruned: Iterable[int]) -> Masks:
    """Masks that prune the given output rows; ``__`` in a keyword stands for the dot of a module's name."""
    masks: Masks = {}
    for keyword, indices in pruned.items():
        name = keyword.replace("__", ".")
        weight = torch.ones(_weight(model, name).shape)
        weight[list(indices)] = 0
        masks[name] = {"weight": weight, **_bias_mask(model.get_submodule(name), weight, bias)}
    return masks


def _bias_mask(module: Any, weight: Tensor, form: str) -> dict[str, Tensor | None]:
    if form == "absent":
        return {}
    if form == "none" or module.bias is None:
        return {"bias": None}
    row = weight.flatten(1).amax(1)
    return {"bias": torch.ones_like(row) if form == "kept" else row}


def fine(model: nn.Module, density: float, *names: str) -> Masks:
    """Unstructured masks of the given density for the weights of these modules, or of all linears and convolutions."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d)
    chosen = names or [name for name, module in model.named_modules() if isinstance(module, kinds)]
    return {name: {"weight": (torch.rand(_weight(model, name).shape) < density).float()} for name in chosen}


def _weight(model: nn.Module, name: str) -> Tensor:
    return model.get_submodule(name).get_parameter("weight")


class MaskedDense:
    """The oracle, made without sparta: `model` in eval mode with every masked tensor multiplied by its mask."""

    def __init__(self, model: nn.Module, masks: Mapping[str, Mapping[str, Tensor | None]]) -> None:
        self.model = model
        self.tensors: dict[str, Tensor] = {}
        names: dict[int, str] = {}
        given = [(f"{module}.{name}", mask) for module, targets in masks.items() for name, mask in targets.items()]
        for full_name, mask in given:
            if mask is not None:
                parameter = model.get_parameter(full_name)
                name = names.setdefault(id(parameter), full_name)
                self.tensors[name] = self.tensors.get(name, parameter.detach()) * mask.to(parameter.dtype)

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            return functional_call(self.model, self.tensors, args, kwargs)
        finally:
            for module, mode in modes.items():
                module.training = mode


def check(
    model: nn.Module,
    masks: Mapping[str, Mapping[str, Tensor | None]] | None,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    batches: Iterable[int] = (3,),
    options: Mapping[str, Any] = FORCE,
    same: Callable[[Any, Any], None] | None = None,
) -> sparta.OptimizedModule:
    """The optimized model, which agrees with the masked dense one for fresh inputs of the same and of other batches."""
    kwargs = dict(kwargs or {})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    fast = sparta.optimize(model, masks, example_inputs=args, example_kwargs=kwargs, options=options)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module.training for module in fast.modules())
    assert not complaints(fast)
    agree(MaskedDense(model, masks or {}), fast, *args, kwargs=kwargs, batches=batches, same=same)
    return fast


def complaints(fast: sparta.OptimizedModule) -> list[str]:
    """The notes that say verification had to repair something; right results alone would hide them."""
    return [note for note in fast.report().notes if "please report it" in note or "not verified" in note]


def agree(
    expected: Callable[..., Any],
    fast: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    batches: Iterable[int] = (3,),
    same: Callable[[Any, Any], None] | None = None,
) -> None:
    """Asserts that both give the same results for fresh inputs of the same and of other batches."""
    for batch in (None, *batches):
        fresh_args, fresh_kwargs = redrawn((args, dict(kwargs or {})), batch)
        want = expected(*fresh_args, **fresh_kwargs)
        (same or assert_same)(want, fast(*fresh_args, **fresh_kwargs))


def redrawn(call: tuple[tuple[Any, ...], dict[str, Any]], batch: int | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with fresh tensors, of another batch where one is given; integers stay in the range seen."""

    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        shape = leaf.shape if batch is None or leaf.dim() == 0 else (batch, *leaf.shape[1:])
        if leaf.dtype.is_floating_point:
            return (2 * torch.randn(shape)).to(leaf.dtype)
        return torch.randint(int(leaf.min()), int(leaf.max()) + 1, shape).to(leaf.dtype)

    args, kwargs = pytree.tree_map(draw, call)
    return args, kwargs


def assert_same(want: Any, got: Any) -> None:
    """Asserts the same structure, shapes, element types and, within rounding, values."""
    want_leaves, want_spec = pytree.tree_flatten(want)
    got_leaves, got_spec = pytree.tree_flatten(got)
    assert got_spec == want_spec
    for a, b in zip(want_leaves, got_leaves, strict=True):
        if not isinstance(a, Tensor):
            assert a == b
            continue
        assert (b.shape, b.dtype) == (a.shape, a.dtype)
        scale = float((a if a.is_complex() else a.double()).abs().max()) or 1.0 if a.numel() else 0.0
        torch.testing.assert_close(b, a, rtol=0, atol=TOLERANCE.get(a.dtype, 0.0) * scale)


class PrunerWrapper(nn.Module):
    """What a pruner puts into a module: it owns the real parameters and their masks, and takes over the forward."""

    def __init__(self, module: nn.Module, masks: Mapping[str, Tensor | None]) -> None:
        super().__init__()
        object.__setattr__(self, "module", module)
        self.module_forward = module.forward
        self.targets = tuple(name for name, _ in module.named_parameters(recurse=False))
        for name in self.targets:
            parameter = module.get_parameter(name)
            delattr(module, name)
            module.register_buffer(name, parameter.detach().clone())
            self.register_parameter(name, parameter)
            self.register_buffer(f"{name}_mask", masks.get(name))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own result, after its scratch buffers were overwritten by the masked parameters."""
        for name in self.targets:
            mask = getattr(self, f"{name}_mask")
            setattr(self.module, name, getattr(self, name) if mask is None else getattr(self, name) * mask)
        return self.module_forward(*args, **kwargs)


def wrap(model: nn.Module, masks: Masks) -> None:
    """Leave `model` as a pruner does that was never told to unwrap it."""
    for name, targets in masks.items():
        module = model.get_submodule(name)
        wrapper = PrunerWrapper(module, targets)
        module._nni_wrapper = wrapper
        module.forward = wrapper.forward

"""What an NNI 3.0 pruner does to a module, in a few lines: the parameter moves into a wrapper that owns the forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class ModuleWrapper(nn.Module):
    """Owns the real weight and its mask; the module keeps a scratch buffer that every forward overwrites."""

    def __init__(self, module: nn.Module, mask: Tensor) -> None:
        super().__init__()
        object.__setattr__(self, "module", module)
        self.module_forward = module.forward
        self.weight = module.weight
        self.register_buffer("weight_mask", mask)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.module.weight = self.weight * self.weight_mask
        return self.module_forward(*args, **kwargs)


def wrap(module: nn.Module, mask: Tensor) -> None:
    """Wrap `module` in place, as a pruner's `compress` does."""
    wrapper = ModuleWrapper(module, mask)
    weight = module.weight.detach().clone()
    del module.weight
    module.register_buffer("weight", weight)
    module._nni_wrapper = wrapper
    module.forward = wrapper.forward

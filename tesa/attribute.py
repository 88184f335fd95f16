"""TeSA, the tensor with sparsity attribute: what is known about every element of one tensor of the graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparta.tesa.compressed import Shape, all_over, any_over, anywhere, compress, everywhere, shape_of, uniform


@dataclass(frozen=True, slots=True, eq=False)
class TeSA:
    """The sparsity attribute of one tensor: SparTA's central abstraction (OSDI'22), per element.

    Parameters
    ----------
    shape
        True shape; an entry is a sympy expression where the graph keeps the dimension symbolic.
    dtype
        Element type of the tensor described.
    known
        Compressed bool tensor: the element has the same value for every input of the model. A hard fact about the
        masked program; it never depends on `need`.
    value
        Compressed tensor of `dtype`: that value (0 = pruned). Meaningless where `known` is False.
    need
        Compressed bool tensor: some output of the graph may depend on the element. All True until the backward pass.

    Examples
    --------
    >>> import torch
    >>> tesa = TeSA.constant(torch.tensor([0.0, 2.0]))
    >>> tesa.nonzero.tolist()
    [False, True]
    """

    shape: Shape
    dtype: torch.dtype
    known: Tensor
    value: Tensor
    need: Tensor

    def __post_init__(self) -> None:
        for name in ("known", "value", "need"):
            part = getattr(self, name)
            fits = part.dim() == len(self.shape) and all(
                got in (1, true) for got, true in zip(part.shape, self.shape, strict=True)
            )
            assert fits, f"TeSA.{name} of shape {tuple(part.shape)} does not compress {self.shape}"

    @classmethod
    def unknown(cls, shape: Shape, dtype: torch.dtype) -> TeSA:
        """The attribute of a tensor nothing is known about, all of it needed."""
        rank = len(shape)
        return cls(shape, dtype, uniform(rank, False), uniform(rank, 0, dtype), uniform(rank, True))

    @classmethod
    def constant(cls, tensor: Tensor) -> TeSA:
        """The attribute of a tensor that is `tensor` for every input, such as a frozen weight."""
        rank = tensor.dim()
        return cls(shape_of(tensor), tensor.dtype, uniform(rank, True), tensor.detach(), uniform(rank, True))

    @classmethod
    def partial(cls, shape: Shape, dtype: torch.dtype, known: Tensor, value: Tensor) -> TeSA:
        """The attribute with `known` elements of `value`; values elsewhere are cleared so that none leaks."""
        if not anywhere(known):
            return cls.unknown(shape, dtype)
        value = value.to(dtype)
        if not everywhere(known):
            value = torch.where(known, value, torch.zeros((), dtype=dtype))
        return cls(shape, dtype, compress(known), compress(value), uniform(len(shape), True))

    @property
    def zero(self) -> Tensor:
        """Compressed bool tensor: the element is zero for every input."""
        return ~self.nonzero

    @property
    def nonzero(self) -> Tensor:
        """Compressed bool tensor: the element may be different from zero."""
        if self.known.numel() == 1:
            return self.value != 0 if bool(self.known) else torch.ones_like(self.known)
        return ~self.known | (self.value != 0)

    @property
    def unknown_elements(self) -> Tensor:
        """Compressed bool tensor: the element may change from input to input."""
        return ~self.known

    @property
    def is_constant(self) -> bool:
        """Every element is known."""
        return everywhere(self.known)

    @property
    def is_unknown(self) -> bool:
        """No element is known."""
        return not anywhere(self.known)

    @property
    def is_static(self) -> bool:
        """No dimension is symbolic."""
        return all(isinstance(size, int) for size in self.shape)

    @property
    def live(self) -> Tensor:
        """Compressed bool tensor: the element must be computed, being both needed and not known."""
        return self.need & ~self.known

    def with_need(self, need: Tensor) -> TeSA:
        """The same attribute with another `need`."""
        return replace(self, need=need)

    def uniform_over(self, dims: Iterable[int]) -> TeSA:
        """The weaker attribute that is the same all along `dims`: known where all elements there are, and are equal."""
        dims = [d % len(self.shape) for d in dims]
        if any(self.shape[d] == 0 for d in dims):
            return self.unknown(self.shape, self.dtype)
        first = self.value
        for d in dims:
            first = first.narrow(d, 0, 1)
        known = all_over(self.known, dims)
        if first.shape != self.value.shape:
            known = known & all_over(self.value == first, dims)
        return replace(self, known=known, value=first, need=any_over(self.need, dims))

    def transposed(self) -> TeSA:
        """The attribute of the tensor with its last two dimensions exchanged."""
        shape = (*self.shape[:-2], self.shape[-1], self.shape[-2])
        return TeSA(shape, self.dtype, self.known.mT, self.value.mT, self.need.mT)

    def full_value(self) -> Tensor:
        """`value` at the true shape (a view); only for tensors without symbolic dimensions."""
        return self.value.expand([int(size) for size in self.shape])

"""Running a tiled kernel: the weight it is specialized for, and how its work is cut into jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparta.kernels.codegen.jit import Native, load
from sparta.kernels.codegen.packing import PackedWeight
from sparta.kernels.codegen.threads import run
from sparta.kernels.codegen.tiles import ROW_STEP, Compute, Sink, Source, Tiling, tile_module
from sparta.kernels.machine import Machine

_TOLERABLE = 1.2
"""Imbalance of threads that is not worth packing the input once more."""
_KEPT_TABLES = 64
"""Tables of jobs that a kernel remembers: one for each size of input seen."""


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """A table of jobs for the kernel, and what the largest of them needs."""

    table: Tensor
    """int32 [jobs, len(JOB_FIELDS)]."""
    scratch: int


def cut_tokens(tokens: int, widths: Sequence[int]) -> list[tuple[int, int]]:
    """The tiles (number of the width, first token) that cover `tokens`; `widths` run from wide to narrow.

    Every tile reads the whole weight, so the rest goes into one tile, the narrowest that holds it.

    Examples
    --------
    >>> cut_tokens(150, (64, 32, 16))
    [(0, 0), (0, 64), (1, 128)]
    """
    wide = widths[0]
    tiles = [(0, start) for start in range(0, tokens - wide + 1, wide)]
    rest = tokens % wide
    if rest:
        fitting = max(number for number, width in enumerate(widths) if width >= rest)
        tiles.append((fitting, tokens - rest))
    return tiles


def cut_rows(sizes: Tensor, height: int, rows: int, parts: int) -> list[tuple[int, int]]:
    """At most `parts` runs of rows that hold about the same number of entries; `sizes` are those of groups of rows."""
    per_row = sizes.repeat_interleave(height)[:rows] + 1
    step = torch.arange(rows) // ROW_STEP
    total = torch.zeros(-(-rows // ROW_STEP), dtype=per_row.dtype).index_add_(0, step, per_row).cumsum(0)
    marks = torch.arange(1, parts) * int(total[-1]) // parts
    inner = (torch.searchsorted(total, marks) + 1) * ROW_STEP
    bounds = [0, *sorted({int(bound) for bound in inner if bound < rows}), rows]
    return list(zip(bounds[:-1], bounds[1:], strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Tiled:
    """A tiled kernel with its weight, ready to be called."""

    native: Native
    tiling: Tiling
    weight: PackedWeight
    row_limit: int
    """Rows of a job whose sums stay in L2."""
    _jobs: dict[tuple[int, int, int], Jobs] = field(default_factory=dict)

    @classmethod
    def build(
        cls, tiling: Tiling, weight: PackedWeight, pieces: tuple[Source, Compute, Sink], machine: Machine
    ) -> Tiled:
        """The kernel, compiled or taken from the cache."""
        module, entry = tile_module(tiling, *pieces)
        limit = max(ROW_STEP, machine.l2 // 2 // (tiling.widths[0].tokens * 4))
        return cls(load(module, entry), tiling, weight, limit)

    def __call__(self, arguments: tuple[int, ...], *, images: int, tokens: int, threads: int) -> None:
        """Run all tiles of `images` times `tokens`; `arguments` are the kernel's, up to the table of jobs."""
        key = (images, tokens, threads)
        jobs = self._jobs.get(key)
        if jobs is None:
            if len(self._jobs) >= _KEPT_TABLES:
                self._jobs.clear()
            jobs = self._jobs[key] = self._cut(images, tokens, threads)
        run(
            self.native,
            (*arguments, jobs.table.data_ptr()),
            jobs=jobs.table.shape[0],
            threads=threads,
            scratch=jobs.scratch,
        )

    def _cut(self, images: int, tokens: int, threads: int) -> Jobs:
        tiles = cut_tokens(tokens, [width.tokens for width in self.tiling.widths])
        rows = self.tiling.out_features
        parts = -(-rows // self.row_limit)
        # Packing is repeated for every run of rows, so runs are added only until threads get about equal shares.
        work = images * [self.tiling.widths[number].tokens for number, _ in tiles]
        while parts < rows // ROW_STEP and imbalance(work * parts, threads) > _TOLERABLE:
            parts += 1
        runs = cut_rows(self.weight.group_sizes, self.weight.height, rows, parts)
        table = [
            (number, image, start, *bounds) for bounds in runs for image in range(images) for number, start in tiles
        ]
        longest = max(last - first for first, last in runs)
        return Jobs(torch.tensor(table, dtype=torch.int32), self.tiling.scratch(longest))


def imbalance(work: Sequence[int], threads: int) -> float:
    """How much longer the busiest thread works than it would if the jobs were divisible.

    Examples
    --------
    >>> imbalance([64, 16], threads=2)
    1.6
    """
    count = len(work)
    shares = [sum(work[part * count // threads : (part + 1) * count // threads]) for part in range(threads)]
    return max(shares) * threads / max(sum(work), 1)


def operand(tensor: Tensor | None, wanted: bool, count: int) -> Tensor | None:
    """A bias or residual of `count` elements, contiguous; None if the kernel was built without it.

    The caller holds on to it while the kernel reads it.
    """
    assert (tensor is not None) == wanted, "bias and residual must be given exactly where the epilogue has them"
    if tensor is None:
        return None
    assert tensor.numel() == count, f"a bias or residual has {tensor.numel()} elements, not {count}"
    return floats(tensor)


def floats(tensor: Tensor) -> Tensor:
    """`tensor`, contiguous; native code would misread anything but single precision."""
    assert tensor.dtype == torch.float32, f"an operand has dtype {tensor.dtype}, not float32"
    return tensor.contiguous()


def address(tensor: Tensor | None) -> int:
    """Where the elements of an operand are; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()

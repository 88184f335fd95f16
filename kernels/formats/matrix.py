"""A convolution weight as a matrix."""

from __future__ import annotations

from torch import Tensor


def conv_matrix(weight: Tensor, groups: int) -> Tensor:
    """The matrix [O, C * KH * KW] of a weight [O, C / groups, KH, KW], zero in the columns of other groups.

    Examples
    --------
    >>> import torch
    >>> conv_matrix(torch.tensor([1.0, 2.0]).view(2, 1, 1, 1), groups=2)
    tensor([[1., 0.],
            [0., 2.]])
    """
    out_channels, group_columns = weight.shape[0], weight[0].numel()
    matrix = weight.new_zeros((groups, out_channels // groups, groups, group_columns))
    grouped = weight.detach().reshape(groups, out_channels // groups, group_columns)
    for group in range(groups):
        matrix[group, :, group] = grouped[group]
    return matrix.view(out_channels, groups * group_columns)

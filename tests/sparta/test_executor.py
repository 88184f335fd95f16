"""Executors: one for each stored weight, and only as long as the weight lives."""

from __future__ import annotations

import gc

import torch
from torch import nn

import sparta
from sparta.runtime import executor


def test_executors_are_made_once_and_die_with_their_weights() -> None:
    gc.collect()
    before = set(executor._EXECUTORS)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    masks = {name: torch.rand(64, 64) > 0.9 for name in ("0.weight", "2.weight")}
    fast = sparta.optimize(model, masks, example_inputs=torch.randn(3, 64), options={"measure": False})
    assert len(set(executor._EXECUTORS) - before) == 2
    del fast
    gc.collect()
    assert set(executor._EXECUTORS) <= before

"""The transform stage: decide, for every weighted operator of a folded model, how to run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sparta.kernels import find
from sparta.kernels.problem import Conv
from sparta.propagation.stages import Folded
from sparta.settings import Settings
from sparta.transformation.choose import DENSE, Choice, choose
from sparta.transformation.plan import Decision, Plan, Planned, Site, bucket_of
from sparta.transformation.sites import find_sites, observe
from sparta.transformation.weight import Weight

FULL = 0.98
"""Density from which there is nothing left to skip, and nothing is tried."""


MOST_GROUPS = 8
"""Convolutions of more groups run dense: as a matrix over all channels they are almost empty by construction."""


def transform(folded: Folded, settings: Settings | None = None, leaves: Sequence[Any] | None = None) -> Planned:
    """The folded model with a decision for each linear and convolution, measured on this machine.

    Parameters
    ----------
    folded
        What `fold` returned.
    settings
        Threads, allowed kernels, whether to measure; defaults as in `optimize`.
    leaves
        Flattened arguments whose sizes count; the captured example by default.
    """
    settings = settings or Settings()
    if leaves is None:
        leaves = pytree.tree_leaves(folded.propagated.annotated.captured.example)
    facts = observe(folded.module, leaves)
    sites = find_sites(folded, facts)
    return Planned(folded, tuple(_decide(site, weight_of(folded, site), settings) for site in sites))


def weight_of(folded: Folded, site: Site) -> Tensor:
    """The folded weight tensor of a site."""
    tensor = getattr(folded.module, site.weight)
    assert isinstance(tensor, Tensor)
    return tensor.detach()


def _decide(site: Site, tensor: Tensor, settings: Settings) -> Decision:
    weight = Weight.of(tensor.contiguous(), site.problem)
    choice = _choice(site, weight, settings)
    return Decision(
        site=site,
        plan=plan_for(site, weight, choice.kernel, settings),
        pattern=str(weight.pattern),
        density=weight.density,
        kernel=choice.kernel,
        reason=choice.reason,
        dense_seconds=choice.seconds.get(DENSE),
        chosen_seconds=choice.seconds.get(choice.kernel),
    )


def _choice(site: Site, weight: Weight, settings: Settings) -> Choice:
    if weight.density >= FULL:
        return Choice(DENSE, "no zeros are left to skip", {})
    if isinstance(site.problem, Conv) and site.problem.groups > MOST_GROUPS:
        return Choice(DENSE, f"{site.problem.groups} groups", {})
    return choose(
        weight,
        max(1, site.tokens),
        threads=settings.threads or torch.get_num_threads(),
        only=settings.kernels,
        trust_estimates=not settings.measure,
    )


def plan_for(site: Site, weight: Weight, kernel: str, settings: Settings) -> Plan:
    """The plan that runs `kernel` at the site's T; other ranges of T are measured when they first occur."""
    name = DENSE if kernel == DENSE else find(kernel).format
    kernels = {} if kernel == DENSE else {bucket_of(site.tokens): kernel}
    return Plan(site.problem, name, weight.parameters(name), kernels, settings.kernels, settings.threads)

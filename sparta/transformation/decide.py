"""The transform stage: decide, for every weighted operator of a folded model, how to run it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sparta.kernels import find
from sparta.propagation.stages import Folded
from sparta.settings import Settings
from sparta.transformation.choose import DENSE, Choice, Weight, choose
from sparta.transformation.plan import Decision, Plan, Planned, Site, bucket_of
from sparta.transformation.sites import find_sites, observe

UNPRUNED = 0.98
"""Density from which a weight counts as not pruned, and nothing is tried."""


def transform(folded: Folded, settings: Settings | None = None) -> Planned:
    """The folded model with a decision for each linear and convolution, measured on this machine.

    Parameters
    ----------
    folded
        What `fold` returned.
    settings
        Threads, allowed kernels, whether to measure; defaults as in `optimize`.
    """
    settings = settings or Settings()
    captured = folded.propagated.annotated.captured
    facts = observe(folded.module, pytree.tree_leaves(captured.example))
    sites = find_sites(folded, facts)
    return Planned(folded, tuple(_decide(site, weight_of(folded, site), settings) for site in sites))


def weight_of(folded: Folded, site: Site) -> Tensor:
    """The folded weight tensor of a site."""
    tensor = folded.module
    for part in site.weight.split("."):
        tensor = getattr(tensor, part)
    assert isinstance(tensor, Tensor)
    return tensor.detach()


def _decide(site: Site, tensor: Tensor, settings: Settings) -> Decision:
    weight = Weight.of(tensor.contiguous(), site.problem)
    density = weight.density
    if density >= UNPRUNED:
        choice = Choice(DENSE, "not pruned", {})
    else:
        choice = choose(
            site.problem,
            weight,
            max(1, site.tokens),
            threads=settings.threads or torch.get_num_threads(),
            only=settings.kernels,
            trust_estimates=not settings.measure,
        )
    return Decision(
        site=site,
        plan=plan_for(site, weight, choice.kernel, settings),
        pattern=str(weight.pattern),
        density=density,
        kernel=choice.kernel,
        reason=choice.reason,
        dense_seconds=choice.seconds.get(DENSE),
        chosen_seconds=choice.seconds.get(choice.kernel),
    )


def plan_for(site: Site, weight: Weight, kernel: str, settings: Settings) -> Plan:
    """The plan that runs `kernel` at the site's T; other ranges of T are measured when they first occur."""
    name = DENSE if kernel == DENSE else find(kernel).format
    kernels = {} if kernel == DENSE else {bucket_of(site.tokens): kernel}
    return Plan(site.problem, name, weight.parameters(name), kernels, settings.kernels, settings.threads)

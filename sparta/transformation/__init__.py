"""Where propagation and kernels meet: choosing how to run every weighted operator."""

from sparta.transformation.decide import transform
from sparta.transformation.plan import Decision, Plan, Planned, Site

__all__ = ["Decision", "Plan", "Planned", "Site", "transform"]

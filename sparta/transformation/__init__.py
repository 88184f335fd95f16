"""Where propagation and kernels meet: choosing how to run every weighted operator, and rewriting the graph to it."""

from sparta.transformation.decide import transform
from sparta.transformation.plan import Decision, Plan, Planned, Site
from sparta.transformation.rewrite import Specialized, specialize

__all__ = ["Decision", "Plan", "Planned", "Site", "Specialized", "specialize", "transform"]

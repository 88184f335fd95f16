"""The layouts that users will bring a value into, found backward before the graph is rebuilt.

A layer whose result is added to a residual stream can compute the rows of the stream that it leaves at zero, instead
of computing fewer rows and scattering them. It needs to know beforehand which layout the addition will have.
"""

from __future__ import annotations

from torch import fx

from sparta.propagation.folding import layout as lay
from sparta.propagation.folding.elementwise import is_elementwise, pull_elementwise
from sparta.propagation.folding.folder import Folder
from sparta.propagation.folding.layout import Layout
from sparta.propagation.folding.table import ITEM_RULES, PULLS, RULES, operator_name


def demands(folder: Folder) -> dict[fx.Node, Layout]:
    """Live node -> the union of what is wanted of it and of the layouts that its users will take it in."""
    found: dict[fx.Node, Layout] = {}
    for node in reversed(folder.captured.graph.nodes):
        if folder.is_tensor(node) and folder.is_live(node):
            layout = folder.want(node)
            for user in node.users:
                layout = _union(folder, node, layout, _demanded(folder, node, user, found))
            found[node] = layout
    return found


def _demanded(folder: Folder, node: fx.Node, user: fx.Node, found: dict[fx.Node, Layout]) -> Layout:
    """The layout in which `user` will take `node`: whole for outputs and operators without a fold rule."""
    if is_elementwise(user) and user in found:
        return pull_elementwise(folder, node, user, found[user])
    name = operator_name(user)
    if name in PULLS and user in found:
        return PULLS[name](folder, node, user, found[user])
    known = name in RULES or name in ITEM_RULES or user not in found
    return folder.want(node) if known and user.op != "output" else lay.whole(len(folder.tesa(node).shape))


def _union(folder: Folder, node: fx.Node, left: Layout, right: Layout) -> Layout:
    shape = folder.tesa(node).shape
    return tuple(lay.union(a, b, size) for a, b, size in zip(left, right, shape, strict=True))

"""Rebuilding a graph with what its attributes say is dead or known left out; `fold` is the entry.

One file per family of operators holds the fold rules (`table.folds`); `folder.Folder` is what they work with.
"""

from sparta.propagation.folding.driver import fold as fold

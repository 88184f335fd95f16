"""The closed table of renderers; a renderer's module is imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from sparta.reporting.document import Document
from sparta.tesa.errors import OptionError

RENDERERS: Mapping[str, str] = MappingProxyType(
    {
        "terminal": "sparta.reporting.to_terminal",
        "markdown": "sparta.reporting.to_markdown",
        "html": "sparta.reporting.to_html",
    }
)
"""Name -> module with `render(document) -> str`."""


def render(document: Document, style: str) -> str:
    """`document` as text in one of `RENDERERS`.

    Raises
    ------
    OptionError
        If no renderer is called `style`.
    """
    if style not in RENDERERS:
        message = f"no renderer is called {style!r}; known: {', '.join(RENDERERS)}"
        raise OptionError(message)
    text: str = import_module(RENDERERS[style]).render(document)
    return text

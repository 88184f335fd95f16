"""Binding calls: the one canonical form of the arguments of a model's forward, and everything wrong with a bad call."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparta.tesa.errors import InputError

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call, in canonical form."""

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def bind(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """The call with every argument in its canonical place, positional where forward allows it.

    Raises
    ------
    InputError
        Listing everything that is wrong: missing, unexpected, surplus and doubled arguments.

    Examples
    --------
    >>> bind(inspect.signature(lambda x, y=1, *, z=2: 0), (), {"z": 5, "x": 3})
    ((3,), {'z': 5})
    """
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        problems = "; ".join(_binding_problems(signature, args, kwargs))
        message = f"the call does not fit forward{signature}: {problems}"
        raise InputError(message) from None
    return bound.args, bound.kwargs


def _binding_problems(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in POSITIONAL]
    kinds = {p.kind for p in parameters}
    if len(args) > len(positional) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        yield f"{len(args)} positional arguments given, {len(positional)} accepted"
    given = {p.name for p in positional[: len(args)]}
    named = {p.name for p in parameters if p.kind in BY_NAME}
    for name in kwargs:
        if name in given and name in named:
            yield f"{name!r} given twice, by position and by name"
        elif name not in named and inspect.Parameter.VAR_KEYWORD not in kinds:
            yield f"unexpected argument {name!r}"
    for parameter in parameters:
        required = parameter.default is inspect.Parameter.empty and parameter.kind in (*POSITIONAL, *BY_NAME)
        if required and parameter.name not in given and parameter.name not in kwargs:
            yield f"missing argument {parameter.name!r}"

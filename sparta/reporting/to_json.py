"""Dataclasses of facts as JSON, and a report back from it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from sparta.tesa.errors import FormatError

if TYPE_CHECKING:
    from sparta.reporting.report import Report

VERSION = 1
"""Of the report's JSON; readers refuse what they do not know."""


def dumps(value: object) -> str:
    """`value` (dataclasses, mappings, sequences, numbers, text) as indented JSON; infinite numbers become strings."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def report_to_json(report: Report) -> str:
    """`report` as JSON, with the speedups spelled out for readers in other languages."""
    plain = asdict(report) | {"version": VERSION, "speedup": report.speedup}
    layers = [asdict(layer) | {"speedup": layer.speedup} for layer in report.layers]
    return dumps(plain | {"layers": layers})


def report_from_json(text: str) -> Report:
    """The report `report_to_json` wrote.

    Raises
    ------
    FormatError
        If `text` is not the JSON of a report of this version.
    """
    from sparta.reporting.report import LayerReport, Report  # report.py imports this module

    try:
        fields = json.loads(text)
        version = fields.pop("version")
        if version != VERSION:
            message = f"the report has version {version!r}; this sparta reads version {VERSION}"
            raise FormatError(message)
        layers = tuple(LayerReport(**_read(layer, _LAYER)) for layer in fields.pop("layers"))
        return Report(layers=layers, **_read(fields, _REPORT))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"this is not the JSON of a report: {error}; write it with report.to_json()"
        raise FormatError(message) from error


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in value)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(text) for text in value)


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(first), str(second)) for first, second in value)


def _shapes(value: Any) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    return {str(name): (_sizes(before), _sizes(after)) for name, (before, after) in value.items()}


_Reader = Callable[[Any], Any]

_LAYER: Mapping[str, _Reader] = {
    "name": str,
    "op": str,
    "shape": _sizes,
    "tokens": int,
    "pattern": str,
    "density": float,
    "kernel": str,
    "reason": str,
    "dense_ms": _number,
    "chosen_ms": _number,
}

_REPORT: Mapping[str, _Reader] = {
    "barriers": _pairs,
    "removed": _shapes,
    "capture": str,
    "error": _number,
    "dense_ms": _number,
    "optimized_ms": _number,
    "stages": lambda value: {str(name): float(seconds) for name, seconds in value.items()},
    "machine": lambda value: {str(name): str(fact) for name, fact in value.items()},
    "notes": _texts,
}


def _read(fields: Mapping[str, Any], readers: Mapping[str, _Reader]) -> dict[str, Any]:
    return {name: read(fields[name]) for name, read in readers.items()}

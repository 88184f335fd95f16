"""The validated arguments of `sparta.optimize`, and the closed set of `options`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparta.tesa.errors import OptionError, UnsupportedTargetError

TARGETS = ("auto", "cpu")

SampleInputs = Callable[[], tuple[tuple[Any, ...], Mapping[str, Any]]]
"""Returns fresh ``(args, kwargs)`` for verification."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to optimize; made by `Settings.checked` only.

    Parameters
    ----------
    threads
        Threads of the native kernels; None follows `torch.get_num_threads()` at call time.
    dynamic_batch
        Keep the first dimension of every tensor argument symbolic where export allows it.
    verify
        True, False or "full" (also certify the propagation by garbage injection).
    strict
        Raise where the default falls back.
    sample_inputs
        Source of fresh verification inputs instead of redrawing the example.
    max_shapes
        How many input shapes keep a compiled program at the same time.
    kernels
        Names of the only kernels that may be chosen, regardless of speed; None lets measurement decide.
    measure
        False trusts the white-box estimates instead of measuring; the result may then be slower than dense.
    """

    threads: int | None = None
    dynamic_batch: bool = True
    verify: bool | str = True
    strict: bool = False
    sample_inputs: SampleInputs | None = None
    max_shapes: int = 8
    kernels: tuple[str, ...] | None = None
    measure: bool = True

    @classmethod
    def checked(cls, *, target: str = "auto", options: Mapping[str, Any] | None = None, **arguments: Any) -> Settings:
        """The settings for these arguments of `optimize`.

        Raises
        ------
        UnsupportedTargetError
            For a target this version cannot produce code for.
        OptionError
            Listing every unknown option and every value out of range.
        """
        if target not in TARGETS:
            message = f"target {target!r} is not supported by this version; known: {', '.join(TARGETS)}"
            raise UnsupportedTargetError(message)
        options = dict(options or {})
        problems = [
            f"unknown option {key!r}; known: {', '.join(sorted(OPTIONS))}" for key in options if key not in OPTIONS
        ]
        problems += [
            f"option {key!r} = {options[key]!r}: {expected}"
            for key, (valid, expected) in OPTIONS.items()
            if key in options and not valid(options[key])
        ]
        problems += [
            f"{key} = {arguments[key]!r}: {expected}"
            for key, (valid, expected) in ARGUMENTS.items()
            if key in arguments and not valid(arguments[key])
        ]
        if problems:
            raise OptionError("\n".join(problems))
        if "kernels" in options:
            options["kernels"] = tuple(options["kernels"])
        return cls(**arguments, **options)


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _kernel_names(value: object) -> bool:
    from sparta import kernels

    return (
        isinstance(value, (list, tuple)) and bool(value) and all(name in kernels.table.kernel_names() for name in value)
    )


Check = tuple[Callable[[object], bool], str]

OPTIONS: Mapping[str, Check] = {
    "sample_inputs": (callable, "give a callable that returns (args, kwargs)"),
    "max_shapes": (_positive, "give a positive int"),
    "kernels": (_kernel_names, "give a non-empty list of kernel names; `sparta doctor` lists them"),
    "measure": (lambda value: isinstance(value, bool), "give True or False"),
}
"""Option name -> (is it valid, what to give instead)."""

ARGUMENTS: Mapping[str, Check] = {
    "threads": (lambda value: value is None or _positive(value), "give None or a positive int"),
    "verify": (lambda value: value in (True, False, "full"), 'give True, False or "full"'),
    "strict": (lambda value: isinstance(value, bool), "give True or False"),
    "dynamic_batch": (lambda value: isinstance(value, bool), "give True or False"),
}

"""Arguments and options of `optimize` are a closed, checked set."""

from __future__ import annotations

import pytest

import sparta
from sparta.settings import Settings
from sparta.tesa.errors import InputError, OptionError, UnsupportedTargetError


def test_defaults_are_valid() -> None:
    assert Settings.checked() == Settings()


def test_every_problem_is_listed_at_once() -> None:
    with pytest.raises(OptionError) as caught:
        Settings.checked(threads=0, verify="some", options={"speed": 11, "max_shapes": -1})
    message = str(caught.value)
    assert all(part in message for part in ("threads = 0", "verify = 'some'", "'speed'", "'max_shapes' = -1"))


def test_unknown_options_list_the_known_ones() -> None:
    with pytest.raises(OptionError, match="known: kernels, max_shapes, measure, sample_inputs"):
        Settings.checked(options={"fast": True})


def test_unknown_target() -> None:
    with pytest.raises(UnsupportedTargetError, match="known: auto, cpu"):
        Settings.checked(target="tpu")


@pytest.mark.parametrize("names", [[], ["nope"], "dense", 3])
def test_kernels_must_be_known(names: object) -> None:
    with pytest.raises(OptionError, match="kernel names"):
        Settings.checked(options={"kernels": names})


def test_kernels_become_a_tuple() -> None:
    assert Settings.checked(options={"kernels": ["dense"]}).kernels == ("dense",)


@pytest.mark.parametrize("threads", [True, 1.5, "2", -1])
def test_threads_must_be_a_positive_int(threads: object) -> None:
    with pytest.raises(OptionError, match="threads"):
        Settings.checked(threads=threads)


@pytest.mark.parametrize("model", [None, 3, "model.pt"])
def test_a_model_must_be_a_module(model: object) -> None:
    with pytest.raises(InputError, match=r"must be a torch\.nn\.Module"):
        sparta.optimize(model)  # type: ignore[arg-type]

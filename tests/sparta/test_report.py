"""The report as data: speedups, wording that never calls noise a gain, and JSON there and back."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparta
from sparta.reporting import LayerReport, Report
from sparta.reporting.layout import latency_text, layout, percent_text
from sparta.reporting.to_json import dumps

LAYER = LayerReport(
    name="blocks.0.up",
    op="linear",
    shape=(1024, 256),
    tokens=128,
    pattern="unstructured",
    density=0.1,
    kernel="csr",
    reason="fastest of 3 measured",
    dense_ms=1.0,
    chosen_ms=0.4,
)
REPORT = Report(
    layers=(LAYER, replace(LAYER, name="head", kernel="dense", dense_ms=None, chosen_ms=None)),
    barriers=(("aten.erfinv", "tail"),),
    removed={"conv.weight": ((64, 3, 3, 3), (32, 3, 3, 3))},
    error=2.5e-7,
    dense_ms=4.0,
    optimized_ms=2.0,
    stages={"capture": 1.25, "fold": 0.25},
    machine={"cpu": "Imaginary", "threads": "2"},
    notes=("one layer was put back to dense",),
)

layers = st.builds(
    LayerReport,
    shape=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    density=st.floats(0, 1),
    dense_ms=st.none() | st.floats(1e-3, 1e3),
    chosen_ms=st.none() | st.floats(1e-3, 1e3),
)
reports = st.builds(
    Report,
    layers=st.lists(layers, max_size=3).map(tuple),
    error=st.none() | st.floats(0, 1),
    dense_ms=st.none() | st.floats(1e-3, 1e3),
    optimized_ms=st.none() | st.floats(1e-3, 1e3),
)


@given(reports)
def test_json_round_trip(report: Report) -> None:
    assert Report.from_json(report.to_json()) == report


def test_json_spells_out_the_speedups() -> None:
    plain = json.loads(REPORT.to_json())
    assert plain["speedup"] == 2.0
    assert [layer["speedup"] for layer in plain["layers"]] == [2.5, None]


def test_an_infinite_error_survives_json() -> None:
    broken = replace(REPORT, error=math.inf)
    assert '"inf"' in broken.to_json()
    assert Report.from_json(broken.to_json()) == broken


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 99}',
        REPORT.to_json().replace('"tokens": 128', '"tokens": "many"'),
        REPORT.to_json().replace('"shape"', '"size"'),
    ],
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(sparta.FormatError, match="report"):
        Report.from_json(text)


@pytest.mark.parametrize(
    ("dense_ms", "optimized_ms", "said"),
    [
        (4.0, 2.0, "2.00x faster than"),
        (2.0, 4.0, "2.00x slower than"),
        (4.0, 4.1, "as fast as"),
        (4.1, 4.0, "as fast as"),
        (None, 4.0, "not measured"),
        (4.0, None, "not measured"),
    ],
)
def test_latency_in_words(dense_ms: float | None, optimized_ms: float | None, said: str) -> None:
    assert latency_text(dense_ms, optimized_ms).startswith(said)


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, "0%"), (1, "100%"), (0.99999, "99.9%"), (1e-9, "0.1%"), (0.1, "10%")]
)
def test_percent_never_rounds_to_none_or_all(fraction: float, text: str) -> None:
    assert percent_text(fraction) == text


def test_empty_tables_are_left_out() -> None:
    assert layout(Report()).tables == ()
    assert [table.title.split()[0] for table in layout(REPORT).tables] == ["Layers", "Removed", "Operators"]


def test_facts_without_content_are_left_out() -> None:
    assert [name for name, _ in layout(Report()).facts] == ["latency", "exactness", "captured"]


def test_dumps_refuses_what_json_cannot_say() -> None:
    with pytest.raises(TypeError):
        dumps({"set": {1}})

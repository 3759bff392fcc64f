"""Pictures: exact shares per cell, well-formed SVG whatever the names, bounded size."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from communis.core.arrays import Array
from communis.fleet.availability.plot import (
    client_map,
    sensor_map,
    sensor_text,
    suite_map,
    there_by_cell,
)
from communis.fleet.availability.trace import Trace

NOTHING = np.zeros((0, 2))


def intervals(*pairs: tuple[float, float]) -> Array:
    return np.array(pairs, float)


def test_cells_hold_the_share_that_is_there() -> None:
    gaps = intervals((1, 2.5), (2.5, 3), (7.75, 8))
    assert there_by_cell(gaps, 8, 4) == pytest.approx([0.5, 0.5, 1.0, 0.875])
    assert there_by_cell(intervals((0, 8)), 8, 3) == pytest.approx([0, 0, 0])
    assert there_by_cell(intervals((2, 99)), 8, 4) == pytest.approx([1, 0, 0, 0])
    assert there_by_cell(NOTHING, 8, 2).tolist() == [1, 1]
    assert there_by_cell(NOTHING, 0, 2).tolist() == [1, 1]
    many = np.sort(np.random.default_rng(0).random(2_000)).reshape(-1, 2)
    lost = np.diff(many, axis=1).sum()
    assert there_by_cell(many, 1, 37).mean() == pytest.approx(1 - lost)


def test_text() -> None:
    text = sensor_text({"acc": intervals((0, 2), (5, 6)), "hr": NOTHING}, 8, width=4)
    assert text.splitlines() == ["acc | █▒█|  62%", "hr  |████| 100%", "     0 s8 s"]
    assert len({len(line) for line in sensor_text({"a": NOTHING}, 9, 60).splitlines()}) == 2


def test_a_trace_gives_the_rows_of_a_client() -> None:
    one = np.array([0])
    trace = Trace(("a", "b"), np.full((1, 3), 9.0), one, one + 1, one + 2, one + 1.0, one + 4.0)
    rows = client_map(trace, ("b", "a"), 0, 2)
    assert list(rows) == ["a", "b"]
    assert rows["b"].tolist() == [[1, 4]]


def test_svg_escapes_names_and_is_well_formed() -> None:
    nasty = "<a & 'b'>"
    for picture in (
        sensor_map({nasty: intervals((1, 2))}, 8, nasty),
        suite_map([("acc",), (nasty,)], ["acc", nasty], nasty),
    ):
        root = ET.fromstring(picture)
        assert root.tag.endswith("svg")
        texts = [t.text for t in root.iter() if t.tag.endswith("text")]
        assert texts.count(nasty) == 2


def test_a_thousand_gaps_make_no_larger_picture_than_pixels() -> None:
    gaps = np.sort(np.random.default_rng(0).random(200_000)).reshape(-1, 2) * 1e4
    root = ET.fromstring(sensor_map({"acc": gaps}, 1e4, "client 3"))
    assert len(list(root)) < 700


def test_the_map_of_suites_has_a_cell_for_everything() -> None:
    root = ET.fromstring(suite_map([("a",), ("a", "b")], ["a", "b"], "fleet"))
    fills = [cell.get("fill") for cell in root if cell.tag.endswith("rect")]
    assert fills[0] == fills[2] == fills[3] != fills[1]
    ET.fromstring(suite_map([("a",)] * 1_000, ["a"], "many"))
    ET.fromstring(suite_map([], [], "none"))
    ET.fromstring(sensor_map({}, 0, "none"))

"""The preview page: every kind of window has a picture, whatever is missing."""

from __future__ import annotations

import base64
import re
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest

from communis import Fleet
from communis.core.errors import CommunisError
from communis.core.tasks import Classification, Localisation
from communis.data.recordings.windows import Windows
from communis.fleet.gaps import trace_of
from communis.results.report import preview


def fleet(**changes: object) -> Fleet:
    rng = np.random.default_rng(0)
    inputs = {
        "acc": rng.standard_normal((6, 3, 20)),
        "csi": rng.standard_normal((6, 2, 5, 8)),
        "cloud": rng.standard_normal((6, 4, 30)),
        "depth": rng.standard_normal((6, 1, 6, 8)),
    }
    inputs["acc"][:, :, 5:8] = np.nan
    inputs["cloud"][:, :, 20:] = np.nan
    fields = {
        "inputs": {m: x.astype(np.float32) for m, x in inputs.items()},
        "target": np.array([0, 1] * 3),
        "owner": np.repeat([0, 1], 3),
        "split": np.array([0, 1, 2] * 2, np.int8),
        "task": Classification(2),
        "labels": ("<sit>", "walk"),
        "kinds": {"csi": "csi", "cloud": "points", "depth": "image"},
        "units": {"acc": "g"},
    }
    return Fleet.of(Windows(**{**fields, **changes}))  # type: ignore[arg-type]


def test_every_kind_is_drawn_and_names_are_escaped() -> None:
    one = fleet()
    page = preview.page(one, trace_of(one), 0, "a <title>")
    assert "a &lt;title&gt;" in page
    assert "class &lt;sit&gt;" in page
    assert page.count("<figure>") == 4
    assert page.count("<circle") == 2 * 20
    assert page.count("data:image/png") == 2
    for svg in re.findall(r"<svg.*?</svg>", page, re.S):
        ElementTree.fromstring(svg)


def test_the_picture_holds_the_values() -> None:
    found = preview._picture(np.array([[[0.0, 1.0], [np.nan, 0.5]]]))
    raw = base64.b64decode(found.split("base64,")[1].split("'")[0])
    start = raw.index(b"IDAT") + 4
    rows = zlib.decompress(raw[start:-16])
    assert list(rows) == [0, 30, 255, 0, 0, 142]


def test_gaps_in_the_data_are_drawn_where_nothing_drops_out() -> None:
    one = fleet()
    text = preview.text(one, trace_of(one), 1)
    assert "client 1: acc, cloud, csi, depth" in text
    line = next(row for row in text.splitlines() if row.startswith("acc"))
    assert "100%" not in line


@pytest.mark.parametrize("kind", ["acc", "csi", "cloud", "depth"])
def test_a_window_without_a_single_value_is_said_to_be_missing(kind: str) -> None:
    one = fleet()
    one.windows.inputs[kind][:] = np.nan
    page = preview.page(one, trace_of(one), 0, "t")
    assert "missing" in page or "no point" in page


def test_other_targets_are_written_out() -> None:
    one = fleet(target=np.ones((6, 2), np.float32), task=Localisation(2), labels=())
    assert "target [1. 1.]" in preview.page(one, trace_of(one), 0, "t")


def test_a_client_that_is_not_there() -> None:
    one = fleet()
    with pytest.raises(CommunisError, match="no client 2; there are 0 to 1"):
        preview.text(one, trace_of(one), 2)

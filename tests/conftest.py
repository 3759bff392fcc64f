"""Every test keeps its windows in a folder of its own session, never in the user's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("home")
    before = os.environ.get("COMMUNIS_DATA")
    os.environ["COMMUNIS_DATA"] = str(place)
    yield place
    if before is None:
        del os.environ["COMMUNIS_DATA"]
    else:
        os.environ["COMMUNIS_DATA"] = before

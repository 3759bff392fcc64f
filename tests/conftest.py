"""What all tests have in common: the folder of windows and the number of threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from communis.run.backends.machine import one_thread


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Every test keeps its windows in a folder of its own session, never in the user's."""
    place = tmp_path_factory.mktemp("home")
    before = os.environ.get("COMMUNIS_DATA")
    os.environ["COMMUNIS_DATA"] = str(place)
    yield place
    if before is None:
        del os.environ["COMMUNIS_DATA"]
    else:
        os.environ["COMMUNIS_DATA"] = before


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run: sums have one order, and threads of tiny operations do not wait for each other
    on a busy machine."""
    with one_thread():
        yield

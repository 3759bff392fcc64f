"""One torch thread, as in a run: sums have one order, and a busy machine does not stall tiny
operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from communis.run.backends.inprocess import one_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield

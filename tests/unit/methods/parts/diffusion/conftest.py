"""One thread, as in a run: steps are so short that several get in each other's way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from communis.run.backends.machine import one_thread


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with one_thread():
        yield

"""What tests of several files need."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

Write = Callable[[Path], None]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Write], Path]:
    """The folder with the files of a dataset, written once."""

    @cache
    def folder(write: Write) -> Path:
        found = tmp_path_factory.mktemp("owners")
        write(found)
        return found

    return folder

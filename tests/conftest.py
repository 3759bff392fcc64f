"""What all tests have in common: a folder of windows of their own session, never the user's, one
torch thread, and no way to a package index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from communis.data.recordings.files import home
from communis.run.backends.machine import one_thread

os.environ["COLUMNS"] = "110"  # of tables, whoever runs the tests; before a console is made
USERS_HOME = home().absolute()  # before a test sets another one


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--need-recordings",
        action="store_true",
        help="fail where the watch recordings are not in the data home, instead of skipping",
    )


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Every test keeps its windows in a folder of its own session, never in the user's."""
    place = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMMUNIS_DATA", str(place))
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", "")
        yield place


@pytest.fixture(scope="session")
def watch_recordings(data_home: Path, request: pytest.FixtureRequest) -> Path:
    """The real file of the watch recordings, in the data home of the tests; skips where the user
    has not fetched it."""
    users = USERS_HOME / "watch" / "watch_dataset.npy"
    if not users.exists():
        why = f"{users} is not there: communis data fetch watch"
        if request.config.getoption("--need-recordings"):
            pytest.fail(why)
        pytest.skip(why)
    place = data_home / "watch" / users.name
    place.parent.mkdir()
    place.symlink_to(users)
    return place


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run: sums have one order, and threads of tiny operations do not wait for each other
    on a busy machine."""
    with one_thread():
        yield

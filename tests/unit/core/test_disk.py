from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from communis.core import disk
from communis.core.errors import CommunisError


@pytest.mark.skipif(sys.platform == "win32", reason="has no such pipes")
def test_a_pipe_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "fleet.json"
    os.mkfifo(pipe)
    with pytest.raises(CommunisError, match=r"fleet\.json: cannot be read .* a pipe or a device"):
        disk.read_json(pipe)
    with pytest.raises(CommunisError, match=r"fleet\.json: .*a pipe or a device"):
        disk.write_json(pipe, {})
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    disk.write_json(tmp_path / "a.json", {"a": 1})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.json").symlink_to(tmp_path / "a.json")
    assert disk.read_json(tmp_path / "b" / "a.json") == {"a": 1}

"""The size of rooms: a file has one purpose and fits in the head."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "communis"


def test_files_stay_short() -> None:
    """The loop that everything meets in may be a little longer."""
    limits = {"run.py": 325}
    for path in SOURCE.rglob("*.py"):
        limit = 150 if path.parent.name == "methods" else limits.get(path.name, 300)
        assert len(path.read_text("utf-8").splitlines()) <= limit, path

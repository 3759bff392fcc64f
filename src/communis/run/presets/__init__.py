"""The built-in experiments: one TOML file each, named by its path below this folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import takewhile
from pathlib import Path

from communis.core.disk import regular
from communis.core.errors import plain
from communis.core.plugins import nearest
from communis.core.settings import SchemaError

FOLDER = resources.files(__name__)


def names() -> list[str]:
    return sorted(_below(FOLDER))


def _below(folder: Traversable, above: str = "") -> Iterator[str]:
    for path in folder.iterdir():
        if path.is_dir():
            yield from _below(path, f"{above}{path.name}/")
        elif path.name.endswith(".toml"):
            yield f"{above}{path.name[:-5]}"


def about(preset: str) -> str:
    """Returns the first sentence of the comment at the top of a preset."""
    comment = takewhile(lambda line: line.startswith("#"), _content(preset).splitlines())
    words = " ".join(line.lstrip("# ") for line in comment)
    return re.split(r"(?<=[.!?]) ", words, maxsplit=1)[0]


def text(preset: str) -> str:
    if preset not in names():
        raise SchemaError(
            f"no preset {preset!r}{nearest(preset, names())}; there are {', '.join(names())}"
        )
    return _content(preset)


def _content(preset: str) -> str:
    return (FOLDER / f"{preset}.toml").read_text(encoding="utf-8")


def read(source: str) -> tuple[str, str]:
    """Returns the text of a file or preset, and its name in messages."""
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        try:
            return regular(path).read_text(encoding="utf-8-sig"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise SchemaError(f"{path}: cannot be read: {plain(error)}") from None
    if source not in names():
        raise SchemaError(
            f"{source}: neither a file nor a preset{nearest(source, names())}; presets are "
            f"{', '.join(names())}"
        )
    return _content(source), f"preset {source}"

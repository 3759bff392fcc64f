"""Joined: the files of a folder that belong together, found by the patterns of its manifest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from communis.core.errors import CommunisError
from communis.data.own.manifest import NAME, Manifest


@dataclass(frozen=True)
class Group:
    """Files in which everything in braces agrees."""

    values: Mapping[str, str]  # what is in braces
    paths: Mapping[str, Path]  # by pattern

    @property
    def first(self) -> Path:
        return min(self.paths.values())


def grouped(folder: Path, manifest: Manifest) -> list[Group]:
    """All files that the manifest speaks of, in the order of their names."""
    found: dict[object, Group] = {}
    together = len(manifest.patterns) > 1
    for pattern in manifest.patterns:
        there = matches(folder, pattern)
        if not there:
            raise CommunisError(f"{folder / NAME}: no file matches {pattern!r}")
        for path, values in there:
            key = tuple(sorted(values.items())) if together else path
            before = found.setdefault(key, Group(values, {})).paths
            if pattern in before:
                raise CommunisError(
                    f"{folder / NAME}: {before[pattern]} and {path} both match {pattern!r}; put "
                    "what tells them apart in braces, such as {trial}"
                )
            found[key] = Group(values, {**before, pattern: path})
    return sorted(found.values(), key=lambda group: group.first)


def matches(folder: Path, pattern: str) -> list[tuple[Path, dict[str, str]]]:
    """The files below a folder that match, with what stands for the names in braces: for {label} as
    much as possible, for the others as little."""
    wild = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    shape = ""
    for piece in re.split(r"({\w+}|\*\*/|\*|\?)", pattern):
        name = piece[1:-1]
        if not piece.startswith("{"):
            shape += wild.get(piece) or re.escape(piece)
        elif f"(?P<{name}>" in shape:
            shape += f"(?P={name})"
        else:
            shape += f"(?P<{name}>[^/]+{'' if name == 'label' else '?'})"
    there = folder.glob(re.sub(r"{\w+}", "*", pattern.replace("[", "[[]")))
    pairs = ((p, re.fullmatch(shape, p.relative_to(folder).as_posix())) for p in sorted(there))
    return [(path, match.groupdict()) for path, match in pairs if match and path.is_file()]


def numbered(words: Iterable[str]) -> dict[str, int]:
    """S1, S2, ... and 01, 02, ... keep their numbers; other names, and all if two would have the
    same number (S1, S01), are counted from 1 in sorted order."""
    kept = sorted(set(words))
    parts = [match for match in (re.fullmatch(r"(\D*)(\d+)", w) for w in kept) if match]
    found = {part[0]: int(part[2]) for part in parts}
    same_kind = len(found) == len(kept) and len({part[1] for part in parts}) == 1
    if same_kind and len(set(found.values())) == len(kept):
        return found
    return {w: i for i, w in enumerate(kept, start=1)}

"""Joined: finds files by the patterns of a manifest, and joins those of one recording."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from communis.core.errors import CommunisError
from communis.data.own.manifest import NAME, Manifest

ONE = "(?:[^/])"  # in expressions: what a question mark stands for


@dataclass(frozen=True)
class Group:
    """Files whose values in braces, and what question marks stand for, are equal."""

    values: Mapping[str, str]  # by the name in braces
    paths: Mapping[str, Path]  # by pattern

    @property
    def first(self) -> Path:
        return min(self.paths.values())


def grouped(folder: Path, manifest: Manifest) -> list[Group]:
    """Returns all files that the manifest describes, in the order of their names."""
    groups: dict[object, Group] = {}
    several = len(manifest.patterns) > 1
    left_out = excluded(manifest)
    for pattern in manifest.patterns:
        files = [m for m in matches(folder, pattern) if not left_out(m[0].relative_to(folder))]
        if not files:
            raise CommunisError(f"{folder / NAME}: no file matches {pattern!r}")
        for path, values in files:
            single = _single(pattern, path.relative_to(folder)) if several else ""
            key = (*sorted(values.items()), single) if several else path
            paths = groups[key].paths if key in groups else {}
            if pattern in paths:
                raise CommunisError(
                    f"{folder / NAME}: {paths[pattern]} and {path} both match {pattern!r}; put "
                    "the part in which they differ in braces, such as {trial}"
                )
            groups[key] = Group(values, {**paths, pattern: path})
    return sorted(groups.values(), key=lambda group: group.first)


def new_groups(files: Sequence[Path], manifest: Manifest) -> list[Group]:
    """Returns new files as recordings. If all sensors are in one file, each file is a recording,
    whatever its name; otherwise names must match the patterns, from any folder on."""
    patterns = manifest.unlabelled.patterns
    if len(patterns) == 1:
        return [Group({}, {patterns[0]: path}) for path in files]
    groups: dict[object, Group] = {}
    for path in files:
        pattern, values = _matching(path, patterns)
        key = tuple(sorted(values.items()))
        paths = groups[key].paths if key in groups else {}
        if pattern in paths:
            raise CommunisError(f"{path} and {paths[pattern]} both match {pattern!r}")
        groups[key] = Group(values, {**paths, pattern: path})
    return list(groups.values())


def _matching(path: Path, patterns: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Returns the pattern that the end of a path matches, with the values of its names."""
    for pattern in patterns:
        end = "/".join(path.absolute().parts[-(pattern.count("/") + 1) :])
        match = re.fullmatch(_expression(pattern), end)
        if match:
            return pattern, match.groupdict()
    raise CommunisError(
        f"{path}: its name must tell which sensor it is of: expected one like "
        f"{' or '.join(map(repr, patterns))}"
    )


def excluded(manifest: Manifest) -> Callable[[PurePath], bool]:
    """Returns whether a path below the folder is one that is not read as a recording: those of
    files.exclude, and the files with the labels."""
    found = [glob(pattern) for pattern in manifest.files.exclude]
    if manifest.side_pattern:
        found.append(re.compile(_expression(manifest.side_pattern)))
    return lambda path: any(pattern.fullmatch(path.as_posix()) for pattern in found)


def glob(pattern: str) -> re.Pattern[str]:
    """Returns the expression of a pattern for paths: without a slash it is one of file names in any
    folder; with a slash at the end, of everything in a folder."""
    if "/" not in pattern:
        pattern = f"**/{pattern}"
    rest = ".*" if pattern.endswith("/") else ""
    return re.compile(_expression(pattern) + rest)


def matches(folder: Path, pattern: str) -> list[tuple[Path, dict[str, str]]]:
    """Returns the files below a folder that match, with the values of the names in braces. {label}
    matches as many characters as possible, the others match as few as possible."""
    try:
        expression = re.compile(_expression(pattern))
    except CommunisError as error:
        raise CommunisError(f"{folder}: {error}") from None
    candidates = folder.glob(re.sub(r"{\w+}", "*", pattern.replace("[", "[[]")))
    files = []
    for path in sorted(candidates):
        match = expression.fullmatch(path.relative_to(folder).as_posix())
        if match and path.is_file():
            files.append((path, match.groupdict()))
    return files


def _single(pattern: str, path: PurePath) -> str:
    """Returns what the question marks of a pattern stand for in a path."""
    expression = re.compile(_expression(pattern).replace(ONE, f"({ONE})"))
    match = expression.fullmatch(path.as_posix())
    if match is None:
        return ""
    named = set(expression.groupindex.values())
    return "".join(text for i, text in enumerate(match.groups(), start=1) if i not in named)


def _expression(pattern: str) -> str:
    """Returns a regular expression for paths."""
    wildcards = {"**/": "(?:.*/)?", "*": "[^/]*", "?": ONE}
    expression = ""
    for piece in re.split(r"({\w+}|\*\*/|\*|\?)", pattern):
        name = piece[1:-1]
        if not piece.startswith("{"):
            expression += wildcards.get(piece) or re.escape(piece)
        elif not name.isidentifier():
            raise CommunisError(
                f"{piece} in {pattern!r} stands for no part of a file's name; rename these files, "
                "or put * for it into the pattern"
            )
        elif f"(?P<{name}>" in expression:
            expression += f"(?P={name})"
        else:
            expression += f"(?P<{name}>[^/]+{'' if name == 'label' else '?'})"
    return expression


def numbered(words: Iterable[str]) -> dict[str, int]:
    """Returns the number of every word. S1, S2, ... and 01, 02, ... keep their numbers. Other
    words, and all words if two would have the same number (S1, S01), are counted from 1 in sorted
    order."""
    distinct = sorted(set(words))
    numbers: dict[str, int] = {}
    prefixes = []
    for text in distinct:
        match = re.fullmatch(r"(\D*)(\d+)", text)
        if match:
            numbers[text] = int(match[2])
            prefixes.append(match[1])
    all_numbered = len(numbers) == len(distinct) and len(set(prefixes)) == 1
    if all_numbered and len(set(numbers.values())) == len(distinct):
        return numbers
    return {text: i for i, text in enumerate(distinct, start=1)}

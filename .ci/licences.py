"""Writes LICENCES.md: what communis and its extras bring along, and under which licence.

    make lock

Nothing of these packages is in communis itself; they are installed beside it.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

EXTRAS = ("edf", "export", "privacy", "moment")
HEAD = """# Licences of what communis installs

communis is Apache-2.0. It contains no code of others; these packages are installed beside it. The
versions are those that CI runs with; `make lock` made the list from the packages' own metadata.
Datasets are fetched on request and have licences of their own, see `communis data list`.

| package | version | licence | comes with |
|---|---|---|---|
"""


def brought(extra: str) -> dict[str, Distribution]:
    """The distributions that communis needs with an extra, by name; those of its core with ""."""
    found: dict[str, Distribution] = {}
    waiting = needs("communis", extra)
    while waiting:
        requirement = waiting.pop()
        name = normal(requirement.name)
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            sys.exit(f"{name} is needed by communis[{extra}] but not installed: run `make lock`")
        for inner in ("", *requirement.extras):
            waiting += needs(name, inner)
    return found


def needs(name: str, extra: str) -> list[Requirement]:
    """What a distribution asks for on this machine, with an extra or without."""
    asked = [Requirement(text) for text in distribution(name).requires or ()]
    return [r for r in asked if r.marker is None or r.marker.evaluate({"extra": extra})]


def licence(found: Distribution) -> str:
    """As the metadata has it: the expression, else the classifiers, else the first line."""
    about = found.metadata
    expression = about.get("License-Expression")
    if expression:
        return expression
    kinds = [c for c in about.get_all("Classifier") or () if c.startswith("License ::")]
    if kinds:
        return ", ".join(kind.rpartition(" :: ")[2] for kind in kinds)
    return (about.get("License") or "not stated").strip().splitlines()[0]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def table() -> str:
    """One row per package, with the core or the first extra that brings it."""
    rows: dict[str, tuple[Distribution, str]] = {}
    for extra in ("", *EXTRAS):
        for name, found in brought(extra).items():
            rows.setdefault(name, (found, extra or "the core"))
    lines = [
        f"| {name} | {found.version.partition('+')[0]} | {licence(found)} | {where} |"
        for name, (found, where) in sorted(rows.items())
    ]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path("LICENCES.md").write_text(table(), encoding="utf-8")

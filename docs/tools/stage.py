"""Lays out the pages of the site, for `make docs`.

    python docs/tools/stage.py FOLDER

The README is the site's first page; changelog, contributing guide and benchmarks are pages as well.
Links in the repository lead from file to file, so that they work where the repository is browsed.
Here they are rewritten to lead from page to page. A link to a file that is no page, such as a test,
becomes its text.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
FRONT = "---\nhide: [navigation]\n---\n"  # the first page has nothing beside it
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def pages() -> dict[str, str]:
    """The files that are pages: path in the repository -> path in the site's source."""
    found = dict(OUTSIDE)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        found[path.relative_to(ROOT).as_posix()] = path.relative_to(ROOT / "docs").as_posix()
    for path in sorted((ROOT / "benchmarks").glob("*/README.md")):
        found[path.relative_to(ROOT).as_posix()] = f"experiments/benchmarks/{path.parent.name}.md"
    return found


def files() -> dict[str, str]:
    """Images and style, likewise."""
    found = {"docs/tools/site.css": "site.css"}
    for path in sorted((ROOT / "docs" / "img").glob("*.svg")):
        found[path.relative_to(ROOT).as_posix()] = f"img/{path.name}"
    return found


def rewritten(text: str, page: str, places: dict[str, str]) -> str:
    """A page's text with its links as the site has them; code stays as it is."""
    here = os.path.dirname(places[page])

    def link(match: re.Match[str]) -> str:
        label, target = match.groups()
        file, hash_sign, anchor = target.partition("#")
        if not file or ":" in file:
            return match[0]
        path = os.path.normpath(os.path.join(os.path.dirname(page), file))
        if path in places:
            return f"[{label}]({os.path.relpath(places[path], here or '.')}{hash_sign}{anchor})"
        return label

    parts = []
    start = 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(link, text[start : fence.start()]), fence[0]]
        start = fence.end()
    return "".join([*parts, LINK.sub(link, text[start:])])


def stage(folder: Path) -> None:
    """Writes all pages and images into an empty folder."""
    places = pages() | files()
    for source, place in places.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".md"):
            text = rewritten((ROOT / source).read_text("utf-8"), source, places)
            target.write_text(FRONT + text if place == "index.md" else text, "utf-8")
        else:
            shutil.copyfile(ROOT / source, target)


def main() -> None:
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    stage(folder)


if __name__ == "__main__":
    main()

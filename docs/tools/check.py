"""Checks a built site: every link and picture leads somewhere, and no Markdown was left as text.

python docs/tools/check.py site
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a reader would see of a list, a table or a link that the generator did not recognise.
UNRENDERED = re.compile(r"^\s*(?:[-*] |\|.*\|\s*$)|\]\(", re.MULTILINE)


class Page(HTMLParser):
    """The anchors of a page, where it leads, and the text of its paragraphs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: dict[str, None] = {}
        self.targets: dict[str, None] = {}
        self.paragraphs: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for key in ("id", "name"):
            if values.get(key):
                self.anchors[values[key] or ""] = None
        for key in ("href", "src"):
            if values.get(key):
                self.targets[values[key] or ""] = None
        if tag in ("p", "code"):
            self._open.append(tag)
            if tag == "p":
                self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "p":
            self.paragraphs[-1] += data


def problems(site: Path) -> list[str]:
    """What is wrong, a line for each."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site)
        found += [f"{where}: dead link {t}" for t in page.targets if _dead(t, path, site, pages)]
        left = [text for text in page.paragraphs if UNRENDERED.search(text)]
        found += [f"{where}: not rendered: {' '.join(text.split())[:80]}" for text in left]
    return found


def _dead(target: str, path: Path, site: Path, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return False  # elsewhere; a build does not depend on the network
    place = path
    if parts.path:
        base = site if parts.path.startswith("/") else path.parent
        place = (base / unquote(parts.path).lstrip("/")).resolve()
        if place.is_dir():
            place = place / "index.html"
    if not place.exists():
        return True
    return bool(parts.fragment) and place in pages and not _has(pages[place], parts.fragment)


def _has(page: Page, fragment: str) -> bool:
    return unquote(fragment) in page.anchors


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    found = problems(site)
    if found:
        sys.exit("\n".join(found))
    print(f"{len(list(site.rglob('*.html')))} pages in {site}, no dead link")


if __name__ == "__main__":
    main()

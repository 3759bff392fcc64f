"""Text is escaped wherever it gets into markup, and no module can forget it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markupsafe import Markup

import communis
from communis.core.markup import EMPTY, broken, element, stacked
from communis.results.report.html import STYLE, details, document, dot, figure, legend, note, table

NASTY = """<b>&"'{0}"""
ESCAPED = "&lt;b&gt;&amp;&#34;&#39;{0}"
SOURCE = Path(communis.__file__).parent
WRITERS = [  # modules that write markup
    *sorted((SOURCE / "results" / "report").glob("*.py")),
    SOURCE / "core" / "markup.py",
    SOURCE / "fleet" / "availability" / "plot.py",
    SOURCE / "cli" / "probe.py",
]
TAG = re.compile(r"(?<!\?P)</?[A-Za-z!]|&#?\w+;")  # (?P<name>) is a regular expression
BLOCK = re.compile(r"<(svg|html|table|div|span|td)\b[^>]*>")
LIVE = re.compile(r"on[a-z]+|href|action|formaction|srcdoc")  # attributes that can do something


def test_text_is_escaped_as_a_child_and_as_an_attribute() -> None:
    assert element("td", NASTY) == f"<td>{ESCAPED}</td>"
    assert element("a", title=NASTY) == f"<a title='{ESCAPED}'></a>"


def test_markup_is_not_escaped_again() -> None:
    inner = element("b", "a & b")
    assert element("p", inner, "<") == "<p><b>a &amp; b</b>&lt;</p>"


def test_names_of_attributes() -> None:
    found = element("g", class_="a", stroke_width=1.5, viewBox="0 0", opacity=None)
    assert found == "<g class='a' stroke-width='1.5' viewBox='0 0'></g>"


def test_what_html_does_not_close() -> None:
    assert element("br") == "<br>"
    assert element("meta", charset="utf-8") == "<meta charset='utf-8'>"


def test_lines_of_text_and_of_markup() -> None:
    assert broken("a\n<b>") == "a<br>&lt;b&gt;"
    assert broken(Markup("<b>\n</b>")) == "<b>\n</b>"


@pytest.mark.parametrize(
    "made",
    [
        element("td", NASTY),
        EMPTY,
        stacked(EMPTY, EMPTY),
        broken(NASTY),
        document(NASTY, [note(NASTY)]),
        details(NASTY, note(NASTY), kind=NASTY),
        figure(NASTY, EMPTY),
        legend({NASTY: NASTY}),
        dot(NASTY),
        table([NASTY], [[NASTY]]),
    ],
)
def test_all_pieces_are_markup_without_live_text(made: Markup) -> None:
    assert isinstance(made, Markup)
    assert NASTY not in made
    assert "<b>" not in made


def test_the_style_of_a_page_is_left_alone() -> None:
    assert "details.cell > summary" in document("t", [])
    assert STYLE in document("t", [])


def faults(source: str, marks: bool = False) -> list[str]:
    """What a module may not do; marks: whether it is one of the two that say `Markup(...)`."""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if TAG.search(node.value) and not _explained(node, parents):
                found.append(f"{node.lineno}: a tag in a text, not made by element()")
        elif isinstance(node, ast.Call):
            found += [f"{node.lineno}: {text}" for text in _calls(node, marks)]
        elif isinstance(node, ast.ImportFrom):
            if node.module in ("html", "xml.sax.saxutils"):
                found.append(f"{node.lineno}: escaping by hand")
            if node.module == "markupsafe" and [name.name for name in node.names] != ["Markup"]:
                found.append(f"{node.lineno}: escaping by hand")
    return found


def _explained(node: ast.Constant, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether the text is a docstring, or is marked as markup."""
    parent = parents[node]
    marked = isinstance(parent, ast.Call) and _name(parent) == "Markup"
    return marked or isinstance(parent, ast.Expr)


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _live(word: ast.keyword) -> bool:
    """Whether an attribute can do something. A link within the page can not."""
    if word.arg == "href" and isinstance(word.value, ast.JoinedStr):
        first = word.value.values[0]
        return not (isinstance(first, ast.Constant) and str(first.value).startswith("#"))
    return word.arg is None or bool(LIVE.fullmatch(word.arg.rstrip("_")))


def _calls(call: ast.Call, marks: bool) -> Iterator[str]:
    if _name(call) == "Markup":
        if not marks:
            yield "Markup() outside markup.py and html.py"
        if not all(isinstance(value, ast.Constant) for value in call.args):
            yield "Markup() of what is no literal"
    if _name(call) == "element":
        if not isinstance(call.args[0], ast.Constant) or call.args[0].value == "script":
            yield "a tag that is not fixed, or a script"
        if any(map(_live, call.keywords)):
            yield "attributes that are not fixed, or live"
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("unescape", "Markup"):
        yield f"{call.func.attr}() undoes escaping"


@pytest.mark.parametrize("path", WRITERS, ids=lambda path: path.name)
def test_tags_come_from_element_only(path: Path) -> None:
    marks = path in (
        SOURCE / "core" / "markup.py",
        SOURCE / "results" / "report" / "html.py",
    )
    assert faults(path.read_text("utf-8"), marks) == []


def test_nobody_else_writes_markup() -> None:
    """Modules that write pages are in WRITERS."""
    others = [path for path in sorted(SOURCE.rglob("*.py")) if path not in WRITERS]
    for path in others:
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        imports = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
        assert not {"html", "markupsafe", "communis.core.markup"}.intersection(imports), path
        texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
        assert not [text for text in texts if isinstance(text, str) and BLOCK.search(text)], path


@pytest.mark.parametrize(
    "source",
    [
        'f"<b>{name}</b>"',
        '"<td>" + name',
        'end = "</div>"',
        'text = "a&nbsp;b"',
        'Markup(f"<b>{name}</b>")',
        "Markup(name)",
        "Markup('<b>')",
        "markupsafe.Markup(name)",
        "from html import escape",
        "from markupsafe import escape",
        "text.unescape()",
        "element(name, 'a')",
        "element('script', 'a')",
        "element('p', **names)",
        "element('p', onclick='a')",
        "element('a', href=name)",
        "element('a', href=f'{name}')",
        "element('a', href=f'x:{name}')",
    ],
)
def test_what_is_found(source: str) -> None:
    assert faults(source)


@pytest.mark.parametrize(
    "source",
    [
        '"a < b"',
        'f"{a} <= {b}"',
        '"""Of <b>."""',
        "element('p', 'a', class_='b')",
        "element('a', href=f'#{name}')",
    ],
)
def test_what_is_not(source: str) -> None:
    assert not faults(source)

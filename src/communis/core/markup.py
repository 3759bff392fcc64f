"""Markup and text have different types: HTML and SVG are `Markup`, everything else is `str`, and a
`str` inside markup is escaped.

`element` is the only way to write a tag, so escaping cannot be forgotten. A test checks that
modules that write pages use it.
"""

from __future__ import annotations

from markupsafe import Markup

Content = str | Markup  # of an element: text is escaped, markup is not

EMPTY = Markup()
VOID = ("br", "img", "meta")  # tags without an end tag


def element(tag: str, /, *children: Content, **attributes: str | float | None) -> Markup:
    """Returns the element with these children. In names of attributes, a trailing underscore is
    removed and others become hyphens (`class_`, `stroke_width`). Attributes that are None are left
    out.

    >>> element("td", "a < b", class_="text")
    Markup("<td class='text'>a &lt; b</td>")
    """
    parts = [Markup("<"), tag]
    for name, value in attributes.items():
        if value is not None:
            key = name.removesuffix("_").replace("_", "-")
            parts += [Markup(" "), key, Markup("='"), str(value), Markup("'")]
    parts += [Markup(">"), *children]
    if tag not in VOID:
        parts += [Markup("</"), tag, Markup(">")]
    return Markup().join(parts)


def stacked(*parts: Markup) -> Markup:
    """Joins parts of a page by line breaks of the source."""
    return Markup("\n").join(parts)


def broken(content: Content) -> Markup:
    """Returns text with its line breaks as <br>, and markup as it is."""
    if isinstance(content, Markup):
        return content
    return element("br").join(content.split("\n"))

"""Markup and text are different types: HTML and SVG are `Markup`, everything else is `str`, and a
`str` that gets into markup is escaped.

`element` is the only way to write a tag, so nobody has to remember to escape. A test holds the
modules that write pages to it.
"""

from __future__ import annotations

from markupsafe import Markup

Content = str | Markup  # of an element: text, which is escaped, or markup, which is not

EMPTY = Markup()
WITHOUT_END = ("br", "img", "meta")  # tags that HTML does not close


def element(tag: str, /, *children: Content, **attributes: str | float | None) -> Markup:
    """The element with these children. The last underscore of an attribute's name is dropped and
    others become hyphens (`class_`, `stroke_width`); an attribute that is None is left out.

    >>> element("td", "a < b", class_="text")
    Markup("<td class='text'>a &lt; b</td>")
    """
    parts = [Markup("<"), tag]
    for name, value in attributes.items():
        if value is not None:
            key = name.removesuffix("_").replace("_", "-")
            parts += [Markup(" "), key, Markup("='"), str(value), Markup("'")]
    parts += [Markup(">"), *children]
    if tag not in WITHOUT_END:
        parts += [Markup("</"), tag, Markup(">")]
    return Markup().join(parts)


def stacked(*parts: Markup) -> Markup:
    """The parts of a page, one below the other."""
    return Markup("\n").join(parts)


def broken(content: Content) -> Markup:
    """Text with the line breaks that it has; markup as it is."""
    if isinstance(content, Markup):
        return content
    return element("br").join(content.split("\n"))

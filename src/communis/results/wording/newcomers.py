"""What the scores of newcomers mean, for the terminal and the page alike."""

from __future__ import annotations

from communis.core.selection import Select
from communis.results.newcomers import Newcomers, Served
from communis.results.wording.numbers import span, versus
from communis.results.wording.scores import counts
from communis.results.wording.warnings import listed

CONTROL = "most frequent class"
NO_MODEL = "no common model"


def about_newcomers(found: Newcomers, metric: str, select: Select) -> str:
    """What a newcomer is, and which methods have a common model for it."""
    having = [row.method for row in found.rows if row.common]
    lacking = [row for row in found.rows if not row.common]
    one = set(found.count) == {1}
    text = [
        f"{span(found.count)} newcomer{'' if one else 's'} took no part in training and "
        f"{'is' if one else 'are'} scored on {'its' if one else 'their'} own test windows with the "
        "common model, without fine-tuning."
    ]
    if having:
        when = counts("last" if select == "client" else select, metric)
        text.append(f"The scores are means over newcomers in {when}.")
    if found.control:
        text.append(f"The line '{CONTROL}' always says that of the members' training windows.")
    by_reason: dict[str, list[str]] = {}
    for row in lacking:
        by_reason.setdefault(row.why, []).append(row.method)
    if lacking:
        reasons = [f"{listed(methods)} ({why})" for why, methods in by_reason.items()]
        others = f"those that have one: {listed(having)}" if having else "no method here has one"
        text.append(f"{NO_MODEL.capitalize()}: {'; '.join(reasons)}; {others}.")
    return " ".join(text)


def against(row: Served) -> str:
    """The difference to the best method in words, or that there is no common model."""
    return versus(row.difference, row.verdict) if row.common else NO_MODEL

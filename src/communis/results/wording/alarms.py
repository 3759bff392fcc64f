"""Alarms in words, for the terminal and the page alike: one line for every kind of alarm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from communis.core.metrics import better
from communis.results.alarms import ALONE, FALLING, FEW_SEEDS, NEVER, NOTHING, Alarm
from communis.results.estimate import FEWEST
from communis.results.wording.numbers import plain, span
from communis.results.wording.warnings import listed

NAMED = 8  # things that are listed at most


def sentences(found: Sequence[Alarm], metric: str, cells: int) -> list[str]:
    """A line for every kind of alarm; cells: how many there are."""
    lines = []
    for kind, words in _WORDS.items():
        of_kind = [alarm for alarm in found if alarm.alarm == kind]
        if of_kind:
            lines.append(words(of_kind, metric, cells))
    return lines


def _few_seeds(found: Sequence[Alarm], metric: str, cells: int) -> str:
    seeds = span([int(alarm.value) for alarm in found])
    several = " is" if seeds == "1" else "s are"
    return f"{seeds} seed{several} too few to judge any difference: run {FEWEST}."


def _nothing(found: Sequence[Alarm], metric: str, cells: int) -> str:
    by_method = _by_method(found)
    parts = [
        f"{method} ({'; '.join(_away(alarm, cells) for alarm in own)})"
        if len(own) == 1
        else f"{method} (in {len(own)} of {cells} cells)"
        for method, own in by_method.items()
    ]
    return (
        f"Nothing learned: by {plain(metric)}, {_some(parts)} {_is(parts)} not shown to be better "
        "than always saying the most frequent class."
    )


def _never(found: Sequence[Alarm], metric: str, cells: int) -> str:
    parts = []
    for method, own in _by_method(found).items():
        classes: dict[str, list[Alarm]] = {}
        for alarm in own:
            classes.setdefault(alarm.about, []).append(alarm)
        names = [
            f"{name} (in {sum(a.runs for a in those)} of {_runs(those, cells)})"
            for name, those in classes.items()
        ]
        parts.append(f"{method}: {_some(names)}")
    return f"Classes that no client ever predicts, though there are test windows of them: " \
           f"{_some(parts, '; ')}."  # fmt: skip


def _falling(found: Sequence[Alarm], metric: str, cells: int) -> str:
    parts = []
    for method, own in _by_method(found).items():
        most = max(alarm.value for alarm in own)
        where = f" in {len(own)} of {cells} cells" if cells > 1 else ""
        parts.append(f"{'up to ' * (len(own) > 1)}{100 * most:.0f} % for {method}{where}")
    return (
        "The training loss still falls: of its whole fall, the last quarter of the rounds brought "
        f"{_some(parts)}. More rounds can change the order."
    )


def _alone(found: Sequence[Alarm], metric: str, cells: int) -> str:
    first = found[0]
    if cells > 1:
        return (
            f"In {len(found)} of {cells} cells no method is shown to be better than training alone "
            f"({first.about})."
        )
    if better(metric) * first.value <= 0:
        return (
            f"Training alone ({first.about}) wins: {first.method}, the best federation, is at "
            f"{first.value:+.3f}."
        )
    return (
        f"No method is shown to be better than training alone ({first.about}); {first.method} "
        f"comes closest, at {first.value:+.3f}."
    )


def _away(alarm: Alarm, cells: int) -> str:
    where = f", in 1 of {cells} cells" if cells > 1 else ""
    return f"{alarm.value:+.3f}{where}"


def _runs(found: Sequence[Alarm], cells: int) -> str:
    runs = sum(alarm.of for alarm in found)
    return f"{runs} run{'s' * (runs > 1)}"


def _by_method(found: Sequence[Alarm]) -> Mapping[str, list[Alarm]]:
    groups: dict[str, list[Alarm]] = {}
    for alarm in found:
        groups.setdefault(alarm.method, []).append(alarm)
    return groups


def _some(names: Sequence[str], mark: str = "") -> str:
    """The first names, and how many more there are."""
    if len(names) > NAMED:
        names = [*names[:NAMED], f"{len(names) - NAMED} more"]
    return mark.join(names) if mark else listed(names)


def _is(names: Sequence[str]) -> str:
    return "are" if len(names) > 1 else "is"


_WORDS = {
    FEW_SEEDS: _few_seeds,
    NOTHING: _nothing,
    NEVER: _never,
    FALLING: _falling,
    ALONE: _alone,
}

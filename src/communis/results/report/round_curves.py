"""What happened round by round, as curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY
from communis.results.curves import Bands, distances
from communis.results.finished import Finished
from communis.results.report.html import charts, legend
from communis.results.report.svg import curves, drawn


def distance_chart(
    runs: Sequence[Finished], field: str, title: str, colours: Mapping[str, str]
) -> Markup:
    """A distance of the records by method. Empty where it has no meaning in any."""
    bands = distances(runs, field)
    if not bands:
        return EMPTY
    names = legend({name: colours[name] for name in bands})
    return names + charts(by_round(bands, colours, title, "distance"))


def by_round(bands: Bands, colours: Mapping[str, str], title: str, label: str) -> Markup:
    """A chart with a line for every method and a band over its seeds."""
    powers = any(band.powers for band in bands.values())
    return curves(drawn(bands, colours), title, "round", label, integers=True, powers=powers)

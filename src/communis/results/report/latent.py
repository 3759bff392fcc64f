"""What becomes of class vectors in a common latent space: do they meet, do they collapse, and does
it matter to the networks behind them?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from communis.core import diagnostics
from communis.core.markup import EMPTY, element, stacked
from communis.results import latent
from communis.results.compare import runs_by_method
from communis.results.finished import Finished
from communis.results.report.html import charts, heading, legend, note
from communis.results.report.round_curves import by_round

ABOUT = (
    "Means over the clients that do not attack, from what they noted themselves; bands reach from "
    "the lowest seed to the highest."
)
CHARTS = {  # by the name in the log: title, label, how to read it
    diagnostics.DISTANCE.name: (
        "Distance to the target",
        "distance",
        "How far a client's class vectors lie from their targets when these arrive, before it "
        "turns its projection towards them: falling means that clients come to agree.",
    ),
    diagnostics.SEPARATION.name: (
        "Separation of a client's classes",
        "separation",
        "How far a client's class vectors lie from their own mean: falling to zero is collapse, "
        "where all classes are the same point and agreement says nothing.",
    ),
    diagnostics.TARGET_SEPARATION.name: (
        "Separation of the targets",
        "separation",
        "The same of the targets: much less than the clients' own means that their vectors cancel "
        "each other out in the consensus.",
    ),
    diagnostics.PULL.name: (
        "Pull on the network",
        "ratio of gradients",
        "The gradient of the consensus on a network's weights over that of its own task: near zero "
        "the consensus does not reach the network, far above one it drowns the task.",
    ),
}


def section(runs: Sequence[Finished], shades: Mapping[str, str]) -> Markup:
    """The runs are those of one cell. Empty where no method has such a space."""
    bands = latent.bands(runs)
    drawn = []
    for name, by_method in bands.items():
        title, label, about = CHARTS[name]
        drawn.append(element("div", by_round(by_method, shades, title, label), note(about)))
    if not drawn:
        return EMPTY
    methods = [
        name for name in runs_by_method(runs) if any(name in band for band in bands.values())
    ]
    names = legend({name: shades[name] for name in methods})
    return stacked(heading("The common latent space"), note(ABOUT), names, charts(*drawn))

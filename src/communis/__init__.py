"""communis: federated learning on fleets whose devices have different sensors.

A source gives windows; the fleet assigns them to clients with sensors, models and devices. In each
round the method sends a message down to clients, they train and reply, and it aggregates the
replies; the run keeps records and checkpoints, from which results are computed.

The packages, each of which imports only from those above it:

    core      the contract of a method, states, random streams, tasks and scores, settings, plug-ins
    data      recordings, datasets, your own files, the generated world, downloads, the doctor
    models    the architectures, and how many FLOPs they take
    fleet     windows, sensors, models and devices -> clients
    methods   one file per paper, and the parts that several methods share
    exchange  what happens to a message: codec, ledger, topologies, privacy
    run       configurations, presets, the loop over rounds, workers, checkpoints, engines
    results   comparisons, costs, verdicts, reports, privacy attacks
    cli       the commands
"""

from communis.core.safe_path import leave_working_folder

_as_module = leave_working_folder()

from communis.core.start_up import begin

begin(_as_module)

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from communis.core.contract import (
        Batch,
        Card,
        Client,
        FleetView,
        Method,
        Model,
        Output,
        Score,
        Task,
    )
    from communis.core.errors import CommunisError
    from communis.core.replies import Replies
    from communis.core.state import State
    from communis.core.streams import Streams
    from communis.data.recordings.windows import Windows
    from communis.exchange.messages import RoundRecord
    from communis.fleet.fleet import Fleet
    from communis.methods.fedavg import FedAvg
    from communis.methods.parts.training import Recipe
    from communis.results.experiment import open
    from communis.run.config import load
    from communis.run.loop import Run
    from communis.run.plan import Plan

__all__ = [
    "Batch",
    "Card",
    "Client",
    "CommunisError",
    "FedAvg",
    "Fleet",
    "FleetView",
    "Method",
    "Model",
    "Output",
    "Plan",
    "Recipe",
    "Replies",
    "RoundRecord",
    "Run",
    "Score",
    "State",
    "Streams",
    "Task",
    "Windows",
    "load",
    "open",
]
_CONTRACT = ("Batch", "Card", "Client", "FleetView", "Method", "Model", "Output", "Score", "Task")
_HOMES = {
    **dict.fromkeys(_CONTRACT, "core.contract"),
    "CommunisError": "core.errors",
    "FedAvg": "methods.fedavg",
    "Fleet": "fleet.fleet",
    "Plan": "run.plan",
    "Recipe": "methods.parts.training",
    "Replies": "core.replies",
    "RoundRecord": "exchange.messages",
    "Run": "run.loop",
    "State": "core.state",
    "Streams": "core.streams",
    "Windows": "data.recordings.windows",
    "load": "run.config",
    "open": "results.experiment",
}


def __getattr__(name: str) -> Any:
    """Imports a public name on first access. Most of them need torch, which takes seconds to
    import, and many commands of the command line do not need it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"communis.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

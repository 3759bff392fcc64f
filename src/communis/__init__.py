"""communis: federated learning across fleets whose devices sense differently.

data source --> windows --> fleet (who owns which windows, sensors, model) --> cards, clients
                              |
method (frozen settings) -----+--> run: down -> adopt -> local -> Up -> aggregate -> records
                              |
topology, backend ------------+
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

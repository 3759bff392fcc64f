"""communis: federated learning across fleets whose devices sense differently.

data source --> windows --> fleet (who owns which windows, sensors, model) --> cards, clients
                              |
method (frozen settings) -----+--> run: down -> adopt -> local -> Up -> aggregate -> records
                              |
topology, backend ------------+
"""

from communis.safe_path import leave_working_folder

_as_module = leave_working_folder()

from communis.start_up import stop_in_one_line

stop_in_one_line(_as_module)

from communis.config import load
from communis.core import (
    Batch,
    Card,
    Client,
    CommunisError,
    FleetView,
    Method,
    Model,
    Output,
    Score,
    Task,
)
from communis.exchange import RoundRecord
from communis.fleet import Fleet
from communis.local import Recipe
from communis.methods.fedavg import FedAvg
from communis.plan import Plan
from communis.recordings.windows import Windows
from communis.replies import Replies
from communis.run import Run
from communis.state import State
from communis.streams import Streams

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

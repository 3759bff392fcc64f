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

"""Centralized. All training windows in one place: what a federation could reach if data might
leave.

The raw windows are billed as uplink bytes in the first round. Every client's windows are normalised
as that client would, and a
modality that a client lacks is marked absent in its windows.
Deviation: none; there is no paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from communis.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Centralized(FedAvg):
    """One pooled client trains one model, one pass over the pooled data per round and epoch; every
    client is then scored with it."""

    pools_data: ClassVar[bool] = True

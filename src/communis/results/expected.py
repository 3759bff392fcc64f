"""What the files of a run's folder must hold for results to be computed from them.

A folder may be damaged, edited by hand or of a newer version. Everything that is read from it is
compared with what this version writes, so that the rest of communis can rely on it. A refusal names
the file. Keys that are missing belong to an older version; unknown keys are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from communis.core.errors import CommunisError, readable
from communis.core.selection import Select
from communis.core.settings import SchemaError, fitted, refuse_endless, shown
from communis.exchange.messages import RoundRecord
from communis.fleet.availability.trace import Trace

Table = dict[str, Any]
CONFIG: Table = {
    "name": str,
    "seed": int,
    "variant": str,
    "metric": str,
    "select": Select,
    "cell": Table,
    "levels": dict[str, tuple[Any, ...]],
    **dict.fromkeys(("data", "partition", "fleet", "clock", "method", "topology"), Table),
    **dict.fromkeys(("attack", "robust", "privacy", "run"), Table),
}
RUN: Table = {"rounds": int, "eval_every": int, "eval_clients": int}
FLEET: Table = {
    "labels": tuple[str, ...],
    "notes": tuple[str, ...],
    "pooled": bool,
    "brought": Table,
    "attackers": tuple[int, ...],
    "clients": tuple[Table, ...],
    "topology": Table,
    "availability": str,
    "evaluation": dict[str, int],
    "newcomers": tuple[Table, ...],
}
NEWCOMER: Table = {"id": int, "unscored": str}
CLIENT: Table = {
    "id": int,
    "name": str,
    "sensors": tuple[str, ...],
    "windows": int,
    "windows_by_sensor": dict[str, int],
    "model": str,
    "parameters": float,
    "private": float,
    "device": str,
    "detail": str,
}
TOPOLOGY: Table = {
    "kind": str,
    "edges": tuple[tuple[int, int], ...],
    "changes": bool,
    "loss": float,
    "link": str,
    "parts": tuple[tuple[int, ...], ...],
}
ACCOUNT: Table = {
    "mode": str,
    "settings": Table,
    "clients": int,
    "mu": float | None,
    "z": float | None,
    "ended": int,
    "tensors": tuple[Table, ...],
    "leaks": tuple[str, ...],
}
SETTINGS: Table = {
    "delta": float,
    "epsilon": float,
    "noise": float,
    "kappa": float,
    "spend": str,
    "accountant": str,
}
PART: Table = {
    "field": str,
    "part": str,
    "tensors": int,
    "numbers": int,
    "covered": bool,
    "why": str,
}
LOWEST = -2  # the server is -1, all neighbours of a node -2
CLIENTS = ("client", "sender", "receiver", "one", "other")  # columns with numbers of clients
CLOCK = ("compute", "down", "up", "idle", "joules")  # seconds and joules
LATEST = 2**31  # rounds come before


def check(path: Path, content: Any, kinds: Table, where: str = "", all: bool = False) -> None:
    """Refuses a table whose values under these keys are of other kinds. all: no key may be
    missing."""
    try:
        fitted(Table, content, where or "the file")
        refuse_endless(content)
        for key, kind in kinds.items():
            if all or key in content:
                fitted(kind, content.get(key), f"{where}.{key}".lstrip("."))
    except SchemaError as error:
        raise _not_as_written(path, str(error)) from None


def check_fleet(path: Path, fleet: Any) -> None:
    """Refuses a description of a fleet whose clients are not numbered from 0, or whose attackers
    and edges name clients that it does not have."""
    check(path, fleet, FLEET)
    lacking = [key for key in ("labels", "clients", "pooled") if fleet.get(key) is None]
    if lacking:
        raise _not_as_written(path, f"it lacks {', '.join(lacking)}")
    clients = fleet["clients"]
    for number, client in enumerate(clients):
        check(path, client, CLIENT, f"clients[{number}]")
        if client.get("id", number) != number:
            raise _not_as_written(path, f"client {number} is called {shown(client['id'])}")
    evaluation = fleet.get("evaluation")
    if evaluation and not {"clients", "of"} <= evaluation.keys():
        raise _not_as_written(path, "evaluation does not say how many clients of how many")
    newcomers = fleet.get("newcomers") or ()
    for number, newcomer in enumerate(newcomers):
        check(path, newcomer, NEWCOMER, f"newcomers[{number}]", all=True)
    topology = fleet.get("topology") or {}
    check(path, topology, TOPOLOGY, "topology")
    together = (*(topology.get("edges") or ()), *(topology.get("parts") or ()))
    named = [*(fleet.get("attackers") or ()), *(newcomer["id"] for newcomer in newcomers)]
    named += [client for group in together for client in group]
    unknown = [client for client in named if clients and not 0 <= client < len(clients)]
    if unknown:
        raise _not_as_written(path, f"there is no client {unknown[0]}")


def check_trace(path: Path, trace: Trace, fleet: Mapping[str, Any]) -> None:
    """Refuses a trace of another fleet. Older folders do not have its digest."""
    suites = [client.get("sensors") or () for client in fleet["clients"]]
    owned = {sensor for suite in suites for sensor in suite}
    described = len(suites) - 1 if fleet["pooled"] else len(suites)
    if len(trace.seconds) < described or not owned <= set(trace.modalities):
        raise _not_as_written(
            path,
            f"it is of {len(trace.seconds)} clients with {', '.join(trace.modalities)}, fleet.json "
            "of others",
        )
    if fleet.get("availability") not in (None, trace.digest()):
        raise _not_as_written(path, "it does not have the digest that fleet.json has of it")


def check_record(path: Path, record: RoundRecord) -> None:
    """Refuses a record whose values are not numbers of their range."""
    integers = [record.round, record.bytes_down, record.bytes_up, record.bytes_framing]
    integers += [*record.cohort, *(client for client, _ in record.refused)]
    numbers = [record.loss, record.seconds, record.seconds_evaluation, record.seconds_aggregation]
    numbers += [record.virtual_seconds, record.virtual_joules]
    numbers += [record.consensus_distance, record.attack_distance, *record.scores.values()]
    for count in integers:
        if type(count) is not int or not -1 <= count < 2**63:
            raise _not_as_written(path, f"{shown(count)} is no number of bytes, rounds or clients")
    for value in numbers:
        if type(value) not in (int, float) or abs(value) > 1e300:
            raise _not_as_written(path, f"{shown(value)} is no number")
    for text in (*(why for _, why in record.refused), *record.scores):
        if not isinstance(text, str):
            raise _not_as_written(path, f"{shown(text)} is no reason or score")


def check_rows(path: Path, table: pd.DataFrame, clients: Sequence[Mapping[str, Any]]) -> None:
    """Refuses rows with rounds and clients that cannot exist. path: the folder of the tables."""
    most = len(clients) or LATEST
    bounds = {"round": (1, LATEST), "class": (-1, LATEST), "support": (0, np.inf)}
    bounds |= {"payload": (0, np.inf), "framing": (0, np.inf)}
    bounds |= dict.fromkeys(CLIENTS, (LOWEST, most))
    bounds |= dict.fromkeys(CLOCK, (0, np.inf))
    for name, (least, limit) in bounds.items():
        if name not in table or not len(table):
            continue
        low = table[name].min(skipna=False)
        high = table[name].max(skipna=False)
        if not least <= low:
            raise _not_as_written(path, f"it has {name} {low}")
        if not high < limit:
            raise _not_as_written(path, f"it has {name} {high}")


def _not_as_written(path: Path, why: str) -> CommunisError:
    return CommunisError(
        f"{path}: not as this version writes it ({readable(why)}); put back a copy, or run it again"
    )

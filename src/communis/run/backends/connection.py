"""The connection to a Ray cluster, and whether its nodes compute the same."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

from communis.core.errors import CommunisError
from communis.core.extras import require
from communis.run.backends.machine import cores
from communis.run.folder import environment

ROUNDING = ("processor", "torch_cpu", "convolution")  # of an environment: what sums depend on
log = logging.getLogger("communis")
# Nothing is reported to the makers of Ray, and it warns of no change to come in its own behaviour.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# Whatever the name says, without it Ray listens on the network, where whoever reaches it may run
# code.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def connect(address: str = "") -> Any:
    """Returns the module `ray`, connected to a cluster until the process ends. address: of the
    cluster's head, HOST:PORT; empty: the environment variable RAY_ADDRESS, without which a Ray of
    this machine alone is started."""
    address = address or os.environ.get("RAY_ADDRESS", "")
    for name, value in {**_QUIET, **({} if address else _LOOPBACK)}.items():
        os.environ.setdefault(name, value)  # read when Ray is imported
    ray = require("ray")
    if ray.is_initialized():
        return ray
    if address.startswith("ray://"):
        raise CommunisError(
            f"{address}: Ray's client is not supported; run the command on a node of the cluster, "
            "with --address auto or the HOST:PORT that `ray start --head` printed"
        )
    options: dict[str, Any] = {"address": address}
    if not address:
        options = {
            "address": "local",
            "num_cpus": cores(),
            "include_dashboard": False,
        }
    logging.getLogger("ray").setLevel(logging.ERROR)
    ends = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(log_to_driver=False, configure_logging=False, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise CommunisError(
            f"no Ray cluster at {address or 'this machine'} ({error}); start one with "
            "`ray start --head` and `ray start --address HOST:PORT` on the other nodes"
        ) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ends)  # Ray sets one that ends the process amid a round
    return ray


def check_same(node: str, theirs: Mapping[str, Any]) -> None:
    """Refuses a node with other versions than here, and warns of one that rounds differently.
    theirs: the node's `environment()`."""
    ours = environment()
    for name, version in ours["versions"].items():
        if theirs["versions"].get(name) != version:
            raise CommunisError(
                f"node {node} has {name} {theirs['versions'].get(name)}, and this one has "
                f"{version}: install the same versions on all nodes"
            )
    for name in ROUNDING:
        if theirs.get(name) != ours[name]:
            log.warning(
                "node %s computes with %s = %s and this one with %s, which round differently: "
                "results depend on which node computes what",
                node,
                name,
                theirs.get(name),
                ours[name],
            )

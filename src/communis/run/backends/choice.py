"""The backend that a plan names."""

from __future__ import annotations

from pathlib import Path

from communis.exchange.messages import Backend
from communis.exchange.privacy.guard import Guard
from communis.fleet.clients import FleetClients
from communis.run.backends.inprocess import InProcess
from communis.run.plan import Plan


def backend_of(
    plan: Plan, clients: FleetClients, states: Path, guard: Guard | None, experiment: str
) -> Backend:
    """Returns the backend for a run. states: folder of the private client states. guard: protects
    the messages of clients. experiment: the digest that private states are bound to."""
    if plan.backend == "ray":
        from communis.run.backends.ray import RayActors  # needs the extra, and time to import

        return RayActors(
            clients,
            states,
            workers=plan.workers,
            device=plan.device,
            subsets=plan.eval_subsets,
            guard=guard,
            experiment=experiment,
        )
    return InProcess(
        clients.on(plan.device),
        states,
        workers=plan.workers,
        subsets=plan.eval_subsets,
        start_method=plan.start_method,
        guard=guard,
        experiment=experiment,
        together=plan.together,
    )

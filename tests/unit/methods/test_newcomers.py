"""What newcomers are scored with, by hand: the tensors of the server in an empty model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from communis import Run
from communis.core.contract import Batch, Client
from communis.core.state import State
from communis.fleet.clients import FleetClients
from communis.fleet.newcomers import hold_out
from communis.methods.ditto import Ditto
from communis.methods.helora import HeLoRA
from communis.methods.parts.sharing import is_statistic
from communis.methods.wifederated import WiFederated
from communis.models.zoo import architecture
from communis.run.backends.executor import frequencies, guessed
from tests.contract.abilities import AVERAGING
from tests.contract.test_newcomers import NEW, PLAN, SUITES, common_model, finished
from tests.fleets import make, mixed_fleet
from tests.unit.run.test_clock_run import pamap2

Forward = Callable[[Run, Client, Batch], Tensor]


def plain(run: Run, client: Client, batch: Batch) -> Tensor:
    return client.model(batch).prediction


def unimodal_mean(run: Run, client: Client, batch: Batch) -> Tensor:
    """The mean of the networks of the sensors that were there."""
    total = torch.zeros(len(batch), 3)
    count = torch.zeros(len(batch), 1)
    for m, h in client.model(batch).features.items():
        there = batch.present[m][:, None].float()
        total = total + there * client.model.unimodal[m](h)
        count = count + there
    return total / count.clamp_min(1)


def tempered_sum(run: Run, client: Client, batch: Batch) -> Tensor:
    total = torch.zeros(len(batch), 3)
    for m, h in client.model(batch).features.items():
        said = client.model.unimodal[m](h)
        sigma = torch.exp(said[:, -1:].clamp(-4, 4) / 2)
        total = total + batch.present[m][:, None].float() * said[:, :-1] / sigma
    return total


def masked(run: Run, client: Client, batch: Batch) -> Tensor:
    """Features of absent sensors are the mean of the server's prototypes over classes."""
    output = client.model(batch)
    features, present = dict(output.features), dict(batch.present)
    for m, h in output.features.items():
        known = run.server.n[m] > 0
        mask = run.server.C[m][known].mean(0)
        features[m] = torch.where(batch.present[m][:, None], h, mask)
        present[m] = torch.ones_like(batch.present[m])
    return client.model.join(features, present).prediction


FORWARDS: dict[str, Forward] = {
    "harmony": unimodal_mean,
    "unifl": unimodal_mean,
    "unimodal": tempered_sum,
    "pmcmfl": masked,
}
WITHOUT = ("fedper", "fedrep", "fedsa_lora")  # they average statistics, but not all parameters
WITH = [name for name in (*AVERAGING, "centralized", "unimodal") if name not in WITHOUT]


def served(run: Run, id: int) -> Client:
    """A newcomer with the common model. What the server does not have is zero."""
    client = FleetClients(run._fleet.fleet, run.method).client(id, PLAN.rounds, fresh=True)
    model = State.all(client.model)
    model.zeros().load_into(client.model)
    State(common_model(run)).pick(model).load_into(client.model)
    client.model.eval()
    return client


def compare(run: Run, rows: Any, client: Client, forward: Forward) -> None:
    batch = client.test.batch(torch.arange(len(client.test)))
    there = torch.stack(list(batch.present.values())).any(0)
    clients = FleetClients(run._fleet.fleet, run.method)
    with torch.no_grad():
        said = guessed(forward(run, client, batch), there, frequencies(client, clients))
    expected = {score.metric: score.value for score in client.task.scores(said, batch.target)}
    rows = rows[(rows["client"] == client.card.id) & rows["own"] & (rows["class"] == -1)]
    found = dict(zip(rows["metric"], rows["value"], strict=True))
    assert found["nll"] == pytest.approx(expected["nll"], abs=1e-6)
    assert found["accuracy"] == expected["accuracy"]


@pytest.mark.parametrize("id", NEW)
@pytest.mark.parametrize("name", WITH)
def test_an_entry_is_what_the_common_model_says(name: str, id: int) -> None:
    """Nothing that a client keeps has a part in it: no private head, no fine-tuning."""
    run, rows = finished(name)
    compare(run, rows, served(run, id), FORWARDS.get(name, plain))


@pytest.mark.parametrize("id", NEW)
@pytest.mark.parametrize("method", [Ditto, WiFederated])
def test_recalibrated_statistics_are_those_of_unlabelled_windows(method: Any, id: int) -> None:
    """In one pass over them. What was there before does not matter."""
    made = method(batch=8, buffers="recalibrate")
    with Run(mixed_fleet(suites=SUITES), made, PLAN) as run:
        list(run)
        rows = run.scores()
    rows = rows[rows["split"] == "newcomers"]
    client = served(run, id)
    assert client.unlabelled is not None
    model = client.model
    norms = [norm for norm in model.modules() if hasattr(norm, "running_mean")]
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
        norm.momentum = None
    with torch.no_grad():
        model(client.unlabelled.batch(torch.arange(len(client.unlabelled))))
    for norm in norms:
        norm.eval()
        norm.momentum = 0.1
    assert any(is_statistic(path) for path in model.by_path[1])
    compare(run, rows, client, plain)


@pytest.mark.parametrize("name", ["fedavg", "fedel", "helora"])
def test_with_branches_for_all_sensors(name: str) -> None:
    made = make(name, whole=True, buffers="average")
    with Run(mixed_fleet(suites=SUITES), made, PLAN) as run:
        list(run)
        rows = run.scores()
    compare(run, rows[rows["split"] == "newcomers"], served(run, NEW[0]), plain)


def test_ranks_of_members_do_not_depend_on_the_devices_of_newcomers() -> None:
    """The fastest member has the rank of the model, although a newcomer is faster. This one gets
    the common model, at the same rank."""
    fleet = replace(
        pamap2(), suites=[("acc",)] * 8, models=(architecture("tiny_lora", weights="random"),)
    )
    ranks = {}
    for new in ((), (0, 1, 2)):
        clients = FleetClients(hold_out(fleet, new), HeLoRA())
        server = HeLoRA().start_server(clients)
        ranks[new] = server.r.tolist()
    full = ranks[()][0]
    assert ranks[()][3] < full
    assert ranks[0, 1, 2][3] == full
    card = clients.cards[0]
    lora = HeLoRA().down(server, card).lora
    assert lora
    assert all(tuple(t.shape) == card.params[path] for path, t in lora.items())

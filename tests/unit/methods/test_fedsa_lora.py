"""FedSA-LoRA: FedAvg of the A matrices and the rest; the B matrices stay with their client."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from communis import CommunisError, FedAvg, Fleet
from communis.fleet.clients import FleetClients
from communis.methods.fedper import FedPer
from communis.methods.fedsa_lora import FedSALoRA
from communis.models.zoo import Architecture, architecture
from tests.unit.methods.tiny import (
    SMALL,
    THREE,
    batches,
    descend,
    fill,
    fleet,
    mixed,
    near,
    owned,
    paths,
    play,
    ran,
    same,
    starting,
)

LORA = architecture("tiny_lora", weights="random")
BIAS = "fusion.shared.bias"
KINDS: dict[str, tuple[Architecture, str]] = {"lora": (LORA, "lora_B"), "cnn": (SMALL, BIAS)}


def kept(fleet: Fleet, ending: str) -> tuple[str, ...]:
    """The paths that play B."""
    found = FleetClients(fleet, FedAvg()).params
    return tuple(path for path in found if path.endswith(ending))


def test_two_rounds_by_hand() -> None:
    """A CNN: the bias of the fusion goes on from the client's own, the rest from the mean."""
    lr = 0.4
    game = play(fleet(), FedSALoRA(lr=lr, batch=2), rounds=2)
    common = {k: t for k, t in game.bound.params.items() if k != BIAS}
    bias = dict.fromkeys((0, 1), game.bound.params[BIAS])
    for round in (1, 2):
        ends = {}
        for i in (0, 1):
            client, model = starting(game, i, round)
            ends[i] = descend(fill(model, common | {BIAS: bias[i]}), batches(client, 2), lr)
            bias[i] = ends[i][BIAS]
        common = {k: 0.4 * ends[0][k] + 0.6 * ends[1][k] for k in common}
    assert near(game.server.w, common, atol=1e-5)
    assert all(near(game.states[i], {BIAS: bias[i]}, atol=1e-5) for i in (0, 1))
    assert not torch.allclose(bias[0], bias[1], atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_is_fedper_with_every_b_personal(kind: str) -> None:
    """Bit for bit, over rounds, with mixed sensors; with LoRA that is every B there is."""
    model, ending = KINDS[kind]
    some = mixed(models=(model,))
    personal = kept(some, ending)
    # Per sensor two blocks with four adapted layers each, and the fusion's.
    assert len(personal) == (2 * 2 * 4 + 1 if kind == "lora" else 1)
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2}
    ours = play(some, FedSALoRA(**settings), rounds=2)
    theirs = play(some, FedPer(personal=personal, **settings), rounds=2)
    assert same(ours.server.w, theirs.server.w)
    for i in range(3):
        assert same(ours.states[i], theirs.states[i])
        assert set(ours.states[i]) == set(personal) & set(ours.bound.cards[i].params)


@pytest.mark.parametrize("kind", KINDS)
def test_b_is_on_no_wire(kind: str) -> None:
    """Every A and the head travel, no B does; both are trained."""
    model, ending = KINDS[kind]
    game = play(mixed(models=(model,)), FedSALoRA(lr=0.3), rounds=2)
    sent = paths(game.server)
    for messages in (*game.downs, *game.ups):
        sent |= {path for message in messages.values() for path in paths(message)}
    B = {path for path in game.bound.params if path.endswith(ending)}
    assert sent == set(game.bound.params) - B
    assert all(bool(t.any()) for t in game.states[0].values())  # B starts at zero
    moved = {path for path in sent if not torch.equal(game.server.w[path], game.bound.params[path])}
    assert moved == sent


def test_names_of_adapters_from_elsewhere() -> None:
    """Adapters of peft are modules of that name; a name that only resembles it is none."""
    method = FedSALoRA()
    assert not method.shares("encoders.a.block.0.q.lora_B.default.weight")
    assert not method.shares("fusion.shared.lora_B")
    assert not method.shares("private.head.weight")
    assert method.shares("encoders.a.block.0.q.lora_A.default.weight")
    assert method.shares("encoders.a.lora_Bias")
    assert method.shares("head.out.bias")


def test_b_waits_while_its_client_is_away() -> None:
    game = play(fleet(models=(LORA,)), FedSALoRA(lr=0.3))
    before = game.states[1]
    game.round([0])
    client, state, _ = game.receive(1, 3)
    assert same(state, before)
    now = client.model.by_path[0]
    assert all(torch.equal(now[k], t) for k, t in (before | game.server.w).items())


def test_one_client_is_fedavg() -> None:
    """What is shared and what is kept of one client together are FedAvg's model of it."""
    alone = fleet([(0, 1, 2, 1)], models=(LORA,))
    game = play(alone, FedSALoRA(lr=0.3, batch=2), rounds=2)
    assert same(game.server.w | game.states[0], play(alone, FedAvg(lr=0.3, batch=2), 2).server.w)


def test_idle_client_and_lone_modality() -> None:
    """A client without training windows is scored with its first B."""
    some = fleet([*THREE[:2], ()], (("a", "b"), ("a",), ("a",)), held_out=2, models=(LORA,))
    run = ran(some, FedSALoRA())
    assert run.history[0].cohort == (0, 1)
    assert set(run.scores()["client"]) == {0, 1, 2}


@pytest.mark.parametrize("kind", KINDS)
def test_bytes(kind: str) -> None:
    """4 (|w| - |B|) each way; frozen weights are no part of |w|."""
    model, ending = KINDS[kind]
    run = ran(mixed(models=(model,)), FedSALoRA())
    expected = 4 * owned(run, lambda path: not path.endswith(ending))
    assert run.history[0].bytes_down == run.history[0].bytes_up == expected


def test_a_model_without_any_b_is_refused() -> None:
    """It would silently be FedAvg: attention has neither LoRA nor a fusion bias."""
    with pytest.raises(CommunisError, match=r"the model has none .* choose a model with LoRA"):
        play(fleet(models=("cnn_attention",)), FedSALoRA())
    with pytest.raises(CommunisError, match="FedSALoRA averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), FedSALoRA())

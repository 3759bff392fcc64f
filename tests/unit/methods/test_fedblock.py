"""FedBlock: FedAvg of whole models whose branches train N/|C_m| times as fast."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from communis import Batch, CommunisError, FedAvg, Model
from communis.methods.fedblock import FedBlock
from tests.unit.methods.tiny import (
    SMALL,
    THREE,
    Values,
    apart,
    batches,
    descend,
    fleet,
    mixed,
    near,
    owned,
    play,
    ran,
    same,
    slopes,
    starting,
    task_loss,
)

RARE = (("a", "b"), ("a",), ("a",))  # everybody has a, one of three has b


def branch(m: str, values: Values) -> Values:
    """What belongs to a modality."""
    found = {
        k: t for k, t in values.items() if k.startswith((f"encoders.{m}.", f"fusion.blocks.{m}."))
    }
    assert {k.split(".")[0] for k in found} == {"encoders", "fusion"}
    return found


def test_one_round_by_hand() -> None:
    """Steps of two windows; b trains three times as fast where it is; then the plain mean of all
    three models."""
    lr = 0.2
    game = play(fleet(THREE, RARE), FedBlock(lr=lr, batch=2))

    def slope(model: Model, batch: Batch) -> Values:
        plain = slopes(model, task_loss(model, batch))
        return {k: g * (3 if k in branch("b", plain) else 1) for k, g in plain.items()}

    ends = []
    for i in range(3):
        client, model = starting(game, i)
        assert set(branch("b", dict(model.named_parameters()))) <= set(client.card.params)
        ends.append(descend(model, batches(client, 2), lr, slope))
    assert near(game.server.w, {k: sum(end[k] for end in ends) / 3 for k in ends[0]}, atol=1e-5)
    plain = play(fleet(THREE, RARE), FedAvg(lr=lr, batch=2, whole=True, uniform=True))
    assert apart(branch("b", game.server.w), plain.server.w) > 1e-3


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_step_is_the_cohorts_mean(uniform: bool, optimizer: str) -> None:
    """Three rounds of one step: the larger step makes up for the zeros in the mean, so the result
    is that of averaging every branch over its owners. Without the factor it is not."""
    settings: dict[str, Any] = {"lr": 0.05, "uniform": uniform, "optimizer": optimizer}
    for suites in (RARE, None):
        some = mixed() if suites is None else fleet(THREE, suites)
        ours = play(some, FedBlock(**settings), rounds=3).server.w
        cohorts = play(some, FedAvg(**settings), rounds=3).server.w
        assert near(ours, cohorts, rtol=0, atol=1e-6)
        assert apart(ours, play(some, FedAvg(whole=True, **settings), rounds=3).server.w) > 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_several_steps_are_not(optimizer: str) -> None:
    """From the second step on the gradient is taken further along."""
    settings: dict[str, Any] = {"lr": 0.05, "uniform": True, "optimizer": optimizer, "epochs": 5}
    ours = play(fleet(THREE, RARE), FedBlock(**settings)).server.w
    cohorts = play(fleet(THREE, RARE), FedAvg(**settings)).server.w
    assert apart(branch("b", ours), cohorts) > 1e-4


def test_everybody_has_everything_is_fedavg() -> None:
    """All factors are one: FedAvg's bits, of whole models or of own ones, which are the same."""
    some, settings = fleet(THREE), {"lr": 0.3, "batch": 2, "uniform": True}
    ours = play(some, FedBlock(lr=0.3, batch=2), rounds=2).server
    assert {m: float(rate) for m, rate in ours.rates.items()} == {"a": 1.0, "b": 1.0}
    assert same(ours.w, play(some, FedAvg(**settings), rounds=2).server.w)  # type: ignore[arg-type]


def test_branches_without_a_sensor_come_back_as_they_went() -> None:
    """Bit for bit, with momentum and Adam too: their gradients are exact zeros."""
    for settings in ({"momentum": 0.9}, {"optimizer": "adam"}):
        game = play(fleet(THREE, RARE), FedBlock(lr=0.1, batch=2, **settings), rounds=2)  # type: ignore[arg-type]
        for i in (1, 2):
            sent = branch("b", game.ups[1][i].w)
            assert same(sent, {k: game.downs[1][i].w[k] for k in sent})
        assert apart(branch("b", game.ups[1][0].w), game.downs[1][0].w) > 1e-3


def test_factors_count_owners_that_train() -> None:
    """All have the paths; the card says who has the sensor. A client without windows counts for
    nothing; a sensor of such clients alone has no factor."""
    idle = fleet([(0, 1, 2, 0), (1, 0, 1, 0, 1, 1), ()], (("a",), ("a",), ("a", "b")), held_out=1)
    game = play(idle, FedBlock(lr=0.3))
    assert set(game.server.rates) == {"a"}
    assert game.bound.holders("fusion.blocks.b.weight") == 2
    assert same(branch("b", game.server.w), branch("b", game.bound.params))
    assert set(game.receive(2, 2)[2].rates) == {"a"}
    by_samples = play(fleet(THREE, RARE), FedBlock(lr=0.3, uniform=False)).server.rates
    assert float(by_samples["b"]) == 3.0  # 12 windows, 4 of them with b
    assert {float(r) for r in play(mixed(), FedBlock(lr=0.3)).server.rates.values()} == {1.5}


def test_bytes() -> None:
    """The whole model both ways, and one factor per own sensor down: 4 |w| + 4 m and 4 |w|."""
    run = ran(mixed(), FedBlock())
    assert run.history[0].bytes_up == 4 * owned(run)
    assert run.history[0].bytes_down == 4 * owned(run) + 4 * (2 + 1 + 1)
    assert len({tuple(card.params) for card in run.cards}) == 1


def test_all_finite_with_one_client_and_absent_classes() -> None:
    alone = play(fleet([(0, 0, 1, 1)]), FedBlock(lr=0.3, batch=2), rounds=2)
    assert same(alone.server.w, alone.models[0])
    others = play(fleet(THREE, RARE), FedBlock(lr=0.3, batch=2), rounds=2)
    assert all(bool(torch.isfinite(t).all()) for t in others.server.w.values())


def test_refusals() -> None:
    with pytest.raises(CommunisError, match="ema depends on which clients have a branch"):
        FedBlock(ema="const")
    with pytest.raises(CommunisError, match="FedBlock averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), FedBlock())

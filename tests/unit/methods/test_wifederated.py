"""WiFederated: FedAvg, scored after every client has fine-tuned the common model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from communis import CommunisError, FedAvg, Run
from communis.exchange.wire import encode
from communis.methods.wifederated import WiFederated
from tests.unit.methods.tiny import (
    NORMED,
    SMALL,
    Game,
    Values,
    apart,
    batches,
    descend,
    fill,
    fleet,
    mixed,
    near,
    owned,
    play,
    ran,
    same,
    starting,
    task_loss,
    values,
)


def tuned(game: Game, id: int) -> Values:
    """What the client would be scored with after the last round."""
    client, state, _ = game.receive(id, len(game.ups))
    game.method.prepare(client, state)
    return values(client.model)


def nll(run: Run, client: int) -> float:
    asked = "metric == 'nll' and own and split == 'test' and client == @client"
    (found,) = run.scores().query(asked)["value"]
    return float(found)


def test_one_round_by_hand() -> None:
    """One step per client and the mean by 4 and 6 windows, then three steps of each client alone
    from there; the scores of the round are those of the models where these end."""
    lr, method = 0.5, WiFederated(lr=0.5, tune=3)
    small = fleet(held_out=3)
    game, run = play(small, method), ran(small, method)
    after = [descend(starting(game, i)[1], batches(starting(game, i)[0]), lr) for i in range(2)]
    w = {k: 0.4 * after[0][k] + 0.6 * after[1][k] for k in after[0]}
    assert near(game.server.w, w)
    for i in range(2):
        client, model = starting(game, i, round=2)
        alone = descend(fill(model, w), batches(client, epochs=3), lr)
        assert near(tuned(game, i), alone)
        assert apart(alone, w) > 0.01
        loss = task_loss(model.eval(), client.test.batch(torch.arange(3))).item()
        assert nll(run, i) == pytest.approx(loss, rel=1e-4)


def test_no_tuning_is_fedavg() -> None:
    """Bit for bit, with the scores of every round."""
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "momentum": 0.9}
    small = mixed(held_out=3, models=(NORMED,))
    one = ran(small, WiFederated(tune=0, **settings), rounds=2, eval_every=1)
    other = ran(small, FedAvg(**settings), rounds=2, eval_every=1)
    assert same(one.server.w, other.server.w)
    assert one.scores().equals(other.scores())


@pytest.mark.slow
@pytest.mark.parametrize("carry", [False, True])
def test_training_goes_on_from_the_untuned_model(carry: bool) -> None:
    """However often it is scored, the common model is FedAvg's, and the last scores are the same:
    neither parameters nor BatchNorm statistics nor the optimiser remember the tuning."""
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "momentum": 0.9, "carry": carry}
    small = mixed(held_out=3, models=(NORMED,))
    often = ran(small, WiFederated(**settings), rounds=3, eval_every=1)
    once = ran(small, WiFederated(**settings), rounds=3)
    assert same(often.server.w, ran(small, FedAvg(**settings), rounds=3).server.w)
    assert encode(often.server).data == encode(once.server).data
    last = often.scores().query("round == 3").reset_index(drop=True)
    assert last.equals(once.scores().query("round == 3").reset_index(drop=True))


def test_tuning_is_the_local_work_of_a_next_round() -> None:
    """With as many epochs, a tuned model is what the client sends after that round, bit for bit."""
    method = WiFederated(lr=0.3, batch=2, momentum=0.9, epochs=2, tune=2)
    game = play(mixed(), method)
    found = [tuned(game, i) for i in range(3)]
    game.round()
    assert all(same(found[i], game.ups[1][i].w) for i in range(3))


def test_max_steps_are_those_of_a_round() -> None:
    """Tuning is counted in epochs: it does as many steps as if there were no limit."""
    game = play(fleet(), WiFederated(lr=0.3, batch=2, tune=2, max_steps=1))
    unlimited = replace(game, method=WiFederated(lr=0.3, batch=2, tune=2))
    assert same(tuned(game, 1), tuned(unlimited, 1))
    one_step = replace(game, method=WiFederated(lr=0.3, tune=1))
    assert apart(tuned(game, 1), tuned(one_step, 1)) > 1e-3


def test_statistics_follow_the_tuning() -> None:
    """The BatchNorm statistics that a client is scored with are those after it; the private ones
    stay as its last round left them."""
    game = play(fleet(models=(NORMED,)), WiFederated(lr=0.3, tune=2))
    client, state, _ = game.receive(0, 1)
    kept = {k: t.clone() for k, t in state.items()}
    game.method.prepare(client, state)
    statistics = client.model.by_path[1]
    assert same(kept, state)
    means = [k for k in kept if "running_mean" in k]
    assert means
    assert all(not torch.equal(statistics[k], kept[k]) for k in means)
    (counted,) = {int(t - kept[k]) for k, t in statistics.items() if "tracked" in k}
    assert counted == 2


def test_more_tuning_fits_the_own_windows_better() -> None:
    """The loss on a client's training windows falls with the epochs of tuning."""
    losses = []
    for tune in (0, 2, 20):
        game = play(fleet(), WiFederated(lr=0.3, tune=tune))
        client, model = starting(game, 0)
        fill(model, tuned(game, 0)).eval()
        losses.append(task_loss(model, client.train.batch(torch.arange(4))).item())
    assert losses[0] > losses[1] > losses[2]


def test_a_client_without_training_windows_is_scored_untuned() -> None:
    small = fleet([(0, 1, 2, 0), (1, 2), ()], held_out=3)
    one, other = ran(small, WiFederated(lr=0.3)), ran(small, FedAvg(lr=0.3))
    assert nll(one, 2) == nll(other, 2)
    assert nll(one, 0) != nll(other, 0)


def test_bytes() -> None:
    """Tuning costs no communication: 4 |w| each way."""
    run = ran(mixed(), WiFederated())
    assert run.history[0].bytes_down == run.history[0].bytes_up == 4 * owned(run)


def test_mixed_models() -> None:
    """Refused as in FedAvg; with by_model clients tune the mean of their own architecture."""
    several = fleet([(0, 1, 2), (1, 2, 0), (0, 2)], models=(SMALL, "cnn_small", SMALL), held_out=3)
    with pytest.raises(CommunisError, match="WiFederated averages parameters"):
        ran(several, WiFederated())
    game = play(several, WiFederated(lr=0.3, by_model=True))
    found = [tuned(game, i) for i in range(3)]
    assert set(found[0]) == set(found[2])
    assert apart(found[0], found[2]) > 1e-3


def test_refuses_senseless_settings() -> None:
    with pytest.raises(CommunisError, match="wifederated needs tune >= 0, got -1"):
        WiFederated(tune=-1)

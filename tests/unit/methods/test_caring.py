"""CARING: the plain mean in which clients below the median accuracy weigh less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from communis import CommunisError, FedAvg, Plan, Replies, Run
from communis.core.reductions.settings import RobustConfig
from communis.core.tasks import Pose
from communis.exchange.wire import decode, encode, flatten
from communis.fleet.attack import Attack
from communis.methods.caring import Caring, Up, accuracy
from communis.methods.fedavg import Server
from communis.run.backends.mock import Mock, corrupt
from tests.unit.methods.tiny import (
    NORMED,
    SMALL,
    THREE,
    apart,
    batches,
    card,
    descend,
    fleet,
    mixed,
    near,
    owned,
    play,
    ran,
    same,
    starting,
    vectors,
)

FOUR = ((0, 1, 2, 0), (1, 0, 1, 0, 1, 1), (2, 2), (0, 1, 2, 2, 1, 0, 1))


def test_one_round_by_hand() -> None:
    """Two steps per client, its accuracy counted window by window, the median of three, and the
    mean of every path with weights 1 and 0.3 over its owners."""
    lr = 0.1
    game = play(mixed(), Caring(lr=lr, epochs=2))
    w, a = [], []
    for i in range(3):
        client, model = starting(game, i)
        w.append(descend(model, batches(client, epochs=2), lr))
        own = client.train.batch(torch.arange(len(client.train)))
        said = model.eval()(own).prediction.argmax(1).tolist()
        a.append(sum(s == y for s, y in zip(said, THREE[i], strict=True)) / len(said))
    assert [game.ups[0][i].a for i in range(3)] == a
    assert len(set(a)) == 3  # so that one of them is below the median
    weight = [1.0 if x >= sorted(a)[1] else 0.3 for x in a]
    assert sorted(weight) == [0.3, 1.0, 1.0]
    expected = {}
    for path in set().union(*w):
        holders = [i for i in range(3) if path in w[i]]
        total = sum(weight[i] for i in holders)
        expected[path] = torch.stack([weight[i] / total * w[i][path] for i in holders]).sum(0)
    assert near(game.server.w, expected)
    # The weights are seen: the plain mean ends elsewhere.
    assert (
        apart(game.server.w, play(mixed(), FedAvg(lr=lr, epochs=2, uniform=True)).server.w) > 1e-4
    )


@pytest.mark.parametrize(
    ("a", "settings", "p"),
    [
        # Median 0.6: the first is below. (0.5 * 0 + 3 + 6) / 2.5
        ([0.5, 0.6, 0.9], {"low": 0.5}, 3.6),
        # Median 0.5 of an even number: half of them are below. (0.25 * 0 + 3) / 1.25
        ([0.4, 0.6], {"low": 0.25}, 2.4),
        # All alike reach the median: the plain mean.
        ([0.7, 0.7, 0.7], {"low": 0.0}, 3.0),
        ([0.0, 0.0, 0.0], {"low": 0.0}, 3.0),
        # Whoever is below does not count at all.
        ([0.5, 0.6, 0.9], {"low": 0.0}, 4.5),
        # With samples 1, 2, 3: (0.5 * 1 * 0 + 2 * 3 + 3 * 6) / 5.5
        ([0.5, 0.6, 0.9], {"low": 0.5, "uniform": False}, 48 / 11),
        # One alone is the median.
        ([0.1], {}, 0.0),
    ],
)
def test_server_mean(a: list[float], settings: dict[str, Any], p: float) -> None:
    """Worked out on paper: clients send 0, 3 and 6; a path that nobody sent keeps its value."""
    sent = [(card(i, samples=i + 1, p=1), Up(vectors(p=[3.0 * i]), x)) for i, x in enumerate(a)]
    after = Caring(**settings).aggregate(Server(vectors(p=[9], q=[7])), Replies(sent)).w
    assert near(after, vectors(p=[p], q=[7]))


def test_low_zero_leaves_what_only_the_low_have() -> None:
    """A path whose owners all count for nothing stays as it was."""
    sent = [
        (card(0, p=1, q=1), Up(vectors(p=[1], q=[1]), 0.2)),
        (card(1, p=1), Up(vectors(p=[3]), 0.8)),
    ]
    after = Caring(low=0.0).aggregate(Server(vectors(p=[0], q=[7])), Replies(sent)).w
    assert same(after, vectors(p=[3], q=[7]))


def test_the_median_is_of_the_whole_cohort() -> None:
    """Two architectures with means of their own: both clients of the worse one are low, so that
    they weigh alike there; those of the better one are not told apart by their own median."""
    sent = [
        (card(0, **{"p@x": 1}), Up(vectors(**{"p@x": [0]}), 0.1)),
        (card(1, **{"p@x": 1}), Up(vectors(**{"p@x": [4]}), 0.2)),
        (card(2, **{"p@y": 1}), Up(vectors(**{"p@y": [0]}), 0.8)),
        (card(3, **{"p@y": 1}), Up(vectors(**{"p@y": [6]}), 0.9)),
    ]
    after = Caring().aggregate(Server(vectors(**{"p@x": [9], "p@y": [9]})), Replies(sent)).w
    assert near(after, vectors(**{"p@x": [2], "p@y": [3]}))


def test_low_one_is_uniform_fedavg() -> None:
    """Bit for bit, over rounds, with momentum and mixed sensors; by samples it is FedAvg."""
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "momentum": 0.9}
    for uniform in (True, False):
        one = play(mixed(models=(NORMED,)), Caring(low=1.0, uniform=uniform, **settings), rounds=3)
        other = play(mixed(models=(NORMED,)), FedAvg(uniform=uniform, **settings), rounds=3)
        assert same(one.server.w, other.server.w)
        assert same(one.states[0], other.states[0])


def test_accuracy_is_in_evaluation_mode() -> None:
    """It goes by the BatchNorm statistics and changes none, in parts as in one go."""
    game = play(fleet(FOUR, models=(NORMED,)), Caring(lr=0.3, batch=2), rounds=2)
    for i, own in enumerate(FOUR):
        client = game.receive(i, 2)[0]
        before = {k: t.clone() for k, t in client.model.by_path[1].items()}
        client.model.train()
        found = accuracy(client)
        assert found == accuracy(client, batch=3)
        assert found * len(own) == pytest.approx(round(found * len(own)))
        assert same(before, dict(client.model.by_path[1]))


def test_the_clock_counts_the_pass() -> None:
    """Every training window is passed twice, once to train and once to be counted."""
    game = play(fleet(), Caring())
    client, state, down = game.receive(1, 1)
    timed = replace(client, timed="flop_prop")
    game.method.local(timed, state, down)
    assert timed.log["windows"] == 2 * 6


def test_the_run_does_the_same_and_notes_accuracies() -> None:
    method = Caring(lr=0.5, batch=2)
    run, game = ran(mixed(), method, rounds=2), play(mixed(), method, rounds=2)
    assert same(run.server.w, game.server.w)
    noted = run.folder.log().to_pandas().query("name == 'train_accuracy' and round == 2")
    assert dict(zip(noted["client"], noted["value"], strict=True)) == {
        i: game.ups[1][i].a for i in range(3)
    }


def test_one_client() -> None:
    """The mean of one model is that model, whatever its accuracy."""
    game = play(fleet([(0, 1, 2, 1)]), Caring(lr=0.3), rounds=2)
    assert same(game.server.w, game.models[0])


def test_bytes() -> None:
    """4 |w| each way, and the accuracy in 8 bytes."""
    run = ran(mixed(), Caring())
    assert run.history[0].bytes_down == 4 * owned(run)
    assert run.history[0].bytes_up == 4 * owned(run) + 3 * 8


@pytest.mark.parametrize("a", [-0.01, 1.01, 3e38])
def test_impossible_accuracies_are_refused(a: float) -> None:
    """Their client is left out; the others' median does not know of it."""

    def claim(data: bytes) -> bytes:
        return encode(flatten(decode(data, Up)) | {"a": torch.tensor(a, dtype=torch.float64)}).data

    run = Run(mixed(), Caring(lr=0.3), Plan(rounds=1, workers=1, eval_every=0))
    run.backend = Mock(run.backend, corrupt(claim, 1))
    with run:
        (record,) = list(run)
    ((client, why),) = record.refused
    assert client == 1
    assert "an accuracy must be in [0, 1]" in why
    assert same(run.server.w, play(mixed(), Caring(lr=0.3), cohorts=[[0, 2]]).server.w)


def test_a_claim_of_one_is_believed() -> None:
    """Nothing stops a liar from the full weight; a robust rule must."""
    honest = [(card(i, p=1), Up(vectors(p=[0]), 0.5 + i / 10)) for i in range(3)]
    server, low = Server(vectors(p=[0])), (card(3, p=1), Up(vectors(p=[10]), 0.1))
    claimed = (card(3, p=1), Up(vectors(p=[10]), 1.0))
    told = Caring().aggregate(server, Replies([*honest, low])).w["p"]
    lied = Caring().aggregate(server, Replies([*honest, claimed])).w["p"]
    assert float(told) == pytest.approx(3 / 2.6)  # 0.3, and of the honest the first is low
    assert float(lied) == pytest.approx(10 / 2.6)
    rule = RobustConfig(rule="median").make()
    assert float(Caring().aggregate(server, Replies([*honest, claimed], rule)).w["p"]) == 0


def test_attacks_and_rules() -> None:
    """A message attack bends parameters but not the accuracy, so it is not refused; a rule gets
    the two weights and holds against a lie that carries the mean away."""
    flipped = replace(fleet(FOUR), attack=Attack("sign_flip", (3,), scale=50.0))
    honest = ran(fleet(FOUR), Caring(lr=0.3)).server.w
    moved = []
    for rule in (None, RobustConfig(rule="median").make()):
        plan = Plan(rounds=1, workers=1, eval_every=0)
        with Run(flipped, Caring(lr=0.3), plan, rule=rule) as run:
            (record,) = list(run)
        assert not record.refused
        moved.append(apart(run.server.w, honest))
    assert moved[0] > moved[1] > 0


def test_mixed_models() -> None:
    """Refused as in FedAvg; with by_model an architecture of one client keeps that client's."""
    several = fleet([(0, 1, 2), (1, 2, 0), (0, 2)], models=(SMALL, "cnn_small", SMALL), held_out=3)
    with pytest.raises(CommunisError, match="Caring averages parameters"):
        ran(several, Caring())
    game = play(several, Caring(lr=0.3, by_model=True))
    own = {k: t for k, t in game.server.w.items() if k in game.ups[0][1].w}
    assert same(own, game.ups[0][1].w)
    assert len(own) < len(game.server.w)


def test_needs_classes() -> None:
    poses = fleet(task=Pose(joints=1), target=torch.zeros(10, 3).numpy())
    with pytest.raises(CommunisError, match="caring needs a classification or counting task"):
        ran(poses, Caring())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"low": -0.1}, r"low in \[0, 1\], got -0.1"),
        ({"low": 1.5}, r"low in \[0, 1\], got 1.5"),
        ({"low": float("nan")}, r"low in \[0, 1\], got nan"),
        ({"ema": "const"}, "set ema = 'none'"),
    ],
)
def test_refuses_senseless_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(CommunisError, match=text):
        Caring(**settings)


@pytest.mark.parametrize(("noised", "repaired"), [(-0.2, 0.0), (0.4, 0.4), (7.0, 1.0)])
def test_a_noised_accuracy_is_one_again(noised: float, repaired: float) -> None:
    w = vectors(p=[3.0])
    assert Up(w, noised).repaired() == Up(w, repaired)

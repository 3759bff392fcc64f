"""BatchNorm's statistics: private, averaged like parameters, or estimated anew."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch

from communis import CommunisError, Plan, Run, State
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.wire import decode, encode, flatten
from communis.fleet.clients import FleetClients
from communis.methods.fedavg import FedAvg
from communis.methods.fedper import FedPer
from communis.methods.parts.sharing import is_statistic, nonnegative_variances, recalibrate
from communis.methods.wifederated import WiFederated
from communis.models.zoo import Architecture
from communis.run.backends.mock import Mock, corrupt
from tests.unit.methods.tiny import (
    NORMED,
    THREE,
    Values,
    apart,
    fleet,
    mixed,
    near,
    owned,
    play,
    ran,
    same,
)

WIDE = Architecture(width=6, embedding=6, norm=True)
Buffers = Literal["private", "average", "recalibrate"]


def normed(**changes: Any) -> Any:
    return mixed(models=(NORMED,), **changes)


def statistics(found: Values) -> Values:
    return {path: t for path, t in found.items() if is_statistic(path)}


def parameters(found: Values) -> Values:
    return {path: t for path, t in found.items() if not is_statistic(path)}


@pytest.mark.parametrize(("uniform", "a"), [(False, (0.4, 0.6)), (True, (0.5, 0.5))])
def test_the_mean_has_the_weights_of_parameters(uniform: bool, a: tuple[float, float]) -> None:
    """Clients 0 and 1, of 4 and 6 windows, have `a`. The plain mean of means and of variances."""
    game = play(normed(), FedAvg(lr=0.3, buffers="average", uniform=uniform))
    own = [statistics(game.states[i]) for i in range(2)]
    expected = {p: a[0] * own[0][p] + a[1] * own[1][p] for p in own[1]}
    found = {path: game.server.w[path] for path in expected}
    assert near(found, expected)
    assert {p.rpartition(".")[2] for p in expected} == {"running_mean", "running_var"}
    assert apart(own[0], own[1]) > 1e-3


def test_training_is_the_same() -> None:
    """It goes by the statistics of batches: the common weights have the same bits."""
    found = {
        buffers: play(normed(), FedAvg(lr=0.3, buffers=buffers), rounds=3).server.w
        for buffers in ("private", "average", "recalibrate")
    }
    for w in found.values():
        assert same(parameters(w), found["private"])


def test_a_client_that_never_trained_has_the_common_ones() -> None:
    """By default it has those of its start, 0 and 1."""
    for buffers in ("average", "private"):
        game = play(normed(), FedAvg(lr=0.3, buffers=buffers), cohorts=[[0, 1]] * 2)
        client, _, _ = game.receive(2, 3)
        held = statistics(State.buffers(client.model))
        begun = {path: game.bound.statistics[path] for path in held}
        assert (apart(held, begun) > 1e-3) == (buffers == "average")


def test_bytes() -> None:
    """norm1 and norm2 of 4 and 8 channels, mean and variance: 24 numbers for each of four
    encoders; in clients 0 and 1 and 2."""
    plain = ran(normed(), FedAvg(), rounds=2)
    run = ran(normed(), FedAvg(buffers="average"), rounds=2)
    by_hand = 4 * owned(run) + 4 * 4 * 24
    assert {r.bytes_up for r in run.history} == {r.bytes_down for r in run.history} == {by_hand}
    assert {r.bytes_up for r in plain.history} == {4 * owned(run)}
    assert int(run.links()["payload"].sum()) == 4 * by_hand


def test_statistics_of_personal_layers_stay() -> None:
    """Whoever keeps encoders keeps what they have learnt of their inputs."""
    game = play(normed(), FedPer(buffers="average", personal=("encoders.a.",)))
    sent = statistics(game.ups[0][0].w)
    assert sent
    assert all(path.startswith("encoders.b.") for path in sent)


def test_a_mean_for_every_model() -> None:
    made = fleet(((0, 1, 2, 0), (1, 2, 0), (2, 1, 0), (0, 2, 1)), models=(NORMED, WIDE) * 2)
    run = ran(made, FedAvg(by_model=True, buffers="average"), rounds=2, eval_every=1)
    assert not any(record.refused for record in run.history)
    marks = {path.partition("@")[2] for path in statistics(run.server.w)}
    assert len(marks) == 2


def test_with_whole_models() -> None:
    """A branch without a sensor sends back what it got, its statistics too."""
    game = play(normed(), FedAvg(lr=0.3, whole=True, buffers="average"))
    sent, begun = statistics(game.ups[0][1].w), game.bound.statistics
    lacked = {path: t for path, t in sent.items() if path.startswith("encoders.b.")}
    assert lacked
    assert same(lacked, {path: begun[path] for path in lacked})


def test_a_whole_client_is_scored_only_if_all_is_common() -> None:
    """With private statistics the common model is not complete."""
    for buffers in ("average", "private"):
        made = normed(held_out=3)
        run = ran(made, FedAvg(buffers=buffers), eval_every=1, eval_whole=True)
        found = {m for m in run.scores()["metric"] if m.endswith("@all")}
        assert bool(found) == (buffers == "average")


def test_updates_are_compared_by_their_parameters() -> None:
    plan = Plan(rounds=2, workers=1, pairs=True)
    found = []
    for buffers in ("private", "average"):
        with Run(normed(held_out=1), FedAvg(buffers=buffers), plan) as run:
            list(run)
        found.append(run.folder.pairs().to_pandas())
    assert len(found[0])
    assert found[0].equals(found[1])


@pytest.mark.parametrize("mode", ["local", "central"])
def test_privacy_covers_them(mode: Any) -> None:
    """They are clipped and noised with the rest of w; a variance that noise made negative is 0."""
    privacy = PrivacyConfig(mode=mode, noise=30.0, delta=1e-3)
    method = FedAvg(buffers="average", uniform=True)
    made = fleet(THREE, models=(NORMED,), held_out=2)
    plan = Plan(rounds=2, workers=1, eval_every=1)
    with Run(made, method, plan, privacy=privacy) as run:
        list(run)
    assert not any(record.refused for record in run.history)
    assert np.isfinite(run.scores()["value"]).all()
    found = statistics(run.server.w)
    begun = run._fleet.statistics
    variances = torch.cat([t for path, t in found.items() if path.endswith("var")])
    assert float(variances.min()) == 0.0
    assert apart(found, begun) > 1.0
    covered = {(row["field"], row["covered"]) for row in run.folder.accounted()["tensors"]}
    assert covered == {("w", True)}


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("encoders.a.norm1.num_batches_tracked", torch.zeros(()), "may send"),
        ("encoders.a.norm1.running_mean", torch.zeros(5), "has shape"),
        ("encoders.a.norm1.running_mean", torch.zeros(4).double(), "expected torch.float32"),
        ("encoders.z.norm1.running_mean", torch.zeros(4), "may send"),
        ("encoders.a.norm1.running_mean", None, "is missing"),
    ],
)
def test_what_cannot_be_true_is_refused(path: str, value: Any, why: str) -> None:
    method = FedAvg(buffers="average")

    def change(data: bytes) -> bytes:
        flat = flatten(decode(data, type(method.start_server(bound))))
        flat = {key: t for key, t in flat.items() if key != f"w/{path}"}
        return encode(flat if value is None else {**flat, f"w/{path}": value}).data

    bound = FleetClients(normed(), method)
    run = Run(normed(), method, Plan(rounds=1, workers=1, eval_every=0))
    run.backend = Mock(run.backend, corrupt(change, 1))
    with run:
        (record,) = list(run)
    ((client, reason),) = record.refused
    assert client == 1
    assert why in reason


def test_private_statistics_are_refused_from_clients() -> None:
    """By default nobody can plant any at the server."""

    def plant(data: bytes) -> bytes:
        flat = flatten(decode(data, type(FedAvg().start_server(FleetClients(normed(), FedAvg())))))
        return encode({**flat, "w/encoders.a.norm1.running_mean": torch.zeros(4)}).data

    run = Run(normed(), FedAvg(), Plan(rounds=1, workers=1, eval_every=0))
    run.backend = Mock(run.backend, corrupt(plant, 1))
    with run:
        (record,) = list(run)
    assert [client for client, why in record.refused if "may send" in why] == [1]


def test_nonnegative_variances() -> None:
    w = State(
        {
            "encoders.a.norm.running_var@wide": torch.tensor([-1.0, 2.0]),
            "encoders.a.norm.running_mean@wide": torch.tensor([-1.0, 2.0]),
            "encoders.a.norm.weight@wide": torch.tensor([-1.0, 2.0]),
        }
    )
    assert [t.tolist() for t in nonnegative_variances(w).values()] == [
        [0.0, 2.0],
        [-1.0, 2.0],
        [-1.0, 2.0],
    ]


def test_recalibration_by_hand() -> None:
    """Mean and unbiased variance of what comes into the first norm, over windows and time; the
    device clock counts the pass."""
    game = play(normed(), FedAvg(lr=0.3, buffers="recalibrate"), rounds=2)
    client, state, _ = game.receive(1, 3)
    game.method.prepare(client, state)
    norm = client.model.encoders["a"].norm1  # type: ignore[union-attr, index]
    seen: list[torch.Tensor] = []
    handle = norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        client.model(client.train.batch(torch.arange(6)))
    handle.remove()
    values = seen[0].transpose(0, 1).flatten(1)
    assert torch.allclose(norm.running_mean, values.mean(1), atol=1e-6)
    assert torch.allclose(norm.running_var, values.var(1), rtol=1e-5)
    assert norm.momentum == torch.nn.BatchNorm2d(1).momentum
    assert not norm.training


def test_layers_that_see_nothing_keep_theirs() -> None:
    """A sensor that never worked in training has no windows to go by."""
    seen = {"a": np.ones(10, bool), "b": np.array([True] * 4 + [False] * 6)}
    bound = FleetClients(fleet(models=(NORMED,), present=seen), FedAvg())
    client = bound.client(1, 1, fresh=True)
    with torch.no_grad():
        for path, t in client.model.by_path[1].items():
            t.fill_(3 if is_statistic(path) else 5)
    recalibrate(client, client.model)
    for path, t in client.model.by_path[1].items():
        assert bool((t == (3 if is_statistic(path) else 5)).all()) == ("encoders.b." in path)


def test_tuned_models_are_recalibrated_after_tuning() -> None:
    game = play(normed(), WiFederated(lr=0.3, tune=2, buffers="recalibrate"))
    client, state, _ = game.receive(0, 2)
    game.method.prepare(client, state)
    after = {path: t.clone() for path, t in client.model.by_path[1].items()}
    recalibrate(client, client.model)
    assert same(after, client.model.by_path[1])


@pytest.mark.parametrize("buffers", ["average", "recalibrate"])
def test_a_model_without_batchnorm(buffers: Buffers) -> None:
    """There is nothing that the setting could change."""
    plain = ran(mixed(held_out=2), FedAvg(lr=0.3), rounds=2, eval_every=1)
    run = ran(mixed(held_out=2), FedAvg(lr=0.3, buffers=buffers), rounds=2, eval_every=1)
    assert encode(run.server).data == encode(plain.server).data
    assert run.scores().equals(plain.scores())
    assert math.isfinite(run.history[-1].loss)


def test_refuses() -> None:
    with pytest.raises(CommunisError, match="buffers must be one of 'private', 'average', 'recal"):
        FedAvg(buffers="shared")  # type: ignore[arg-type]

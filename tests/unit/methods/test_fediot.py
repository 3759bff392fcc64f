"""FedIoT: autoencoders of everybody's windows without labels, a classifier of one client's with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import Batch, Client, CommunisError, Model, State
from communis.core.contract import modality_of
from communis.core.tasks import Localisation
from communis.exchange.wire import encode
from communis.fleet.attack import Attack
from communis.methods.fediot import FedIoT, Up
from communis.models.zoo import Architecture
from tests.unit.methods.tiny import (
    SMALL,
    THREE,
    Game,
    Values,
    apart,
    batches,
    descend,
    fleet,
    mixed,
    near,
    owned,
    paths,
    play,
    ran,
    same,
    slopes,
    starting,
    values,
    windows,
)

OWNER = 0  # of the public windows: the first client with both modalities


def only(found: Values, *prefixes: str) -> Values:
    return {k: t for k, t in found.items() if k.startswith(prefixes)}


def autoencoders(found: Values) -> Values:
    return only(found, "encoders.", "unimodal.")


def classifier(found: Values) -> Values:
    return only(found, "fusion.", "head.")


def rebuilt(model: Model, h: Tensor, m: str) -> Tensor:
    """A dense decoder with one hidden layer, back to windows of (2, 16)."""
    weights = dict(model.unimodal[m].named_parameters())
    hidden = F.relu(h @ weights["hidden.0.weight"].T + weights["hidden.0.bias"])
    return (hidden @ weights["out.weight"].T + weights["out.bias"]).view(-1, 2, 16)


def rebuilding(model: Model, batch: Batch) -> Tensor:
    """The errors of all pairs of sensors that a client has: the window of the one from the code of
    the other. All windows have all sensors here."""
    codes = model(batch).features
    errors = [
        (rebuilt(model, h, m) - batch.inputs[m]).square().mean()
        for h in codes.values()
        for m in codes
    ]
    return torch.stack(errors).sum()


def autoencoder_slope(model: Model, batch: Batch) -> Values:
    return autoencoders(slopes(model, rebuilding(model, batch)))


def masked(batch: Batch, *sensors: str) -> Batch:
    present = {m: torch.full((len(batch),), m in sensors) for m in batch.present}
    return replace(batch, present=present)


VIEWS = (("a", "b"), ("a",), ("b",))


def classifying(model: Model, batch: Batch) -> Tensor:
    """The losses with both sensors, with the one and with the other."""
    said = [model(masked(batch, *seen)).prediction for seen in VIEWS]
    return torch.stack([F.cross_entropy(logits, batch.target) for logits in said]).sum()


def classifier_slope(model: Model, batch: Batch) -> Values:
    return classifier(slopes(model, classifying(model, batch)))


def test_two_rounds_by_hand() -> None:
    """Windows: 4 of both sensors, 6 of a, 2 of b. Those of the first client are public and, as it
    has two sensors, count three times."""
    lr = 0.3
    game = play(mixed(), FedIoT(lr=lr, batch=2, alpha=3, classifier_epochs=2), rounds=2)
    w = dict(game.bound.params)
    for round in (1, 2):
        sent = []
        for i in range(3):
            client, model = starting(game, i, round)
            State(w).pick(client.card.params).load_into(model)
            sent.append(autoencoders(descend(model, batches(client, 2), lr, autoencoder_slope)))
        client, model = starting(game, OWNER, round)
        State(w).load_into(model)
        taught = descend(model, batches(client, 2, epochs=2), lr, classifier_slope)
        own = {"a": (12 / 18, 6 / 18, 1), "b": (12 / 14, 2 / 14, 2)}
        for k in sent[0]:
            mine, theirs, other = own[modality_of(k)]
            w[k] = mine * sent[0][k] + theirs * sent[other][k]
        w |= classifier(taught)
        for i in range(3):
            wanted = sent[i] | (classifier(taught) if i == OWNER else {})
            assert near(game.ups[round - 1][i].w, wanted, atol=1e-5)
    assert near(game.server.w, w, atol=1e-5)
    moved = {k: t for k, t in w.items() if not torch.allclose(t, game.bound.params[k], atol=1e-4)}
    assert {k.split(".")[0] for k in moved} == {"encoders", "unimodal", "fusion", "head"}


def test_without_cross_modalities_learn_apart() -> None:
    """What a client with both sensors sends of one is what it would send with that alone."""
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "epochs": 2}
    for cross in (False, True):
        both = play(fleet([THREE[1]]), FedIoT(cross=cross, **settings))
        for m in ("a", "b"):
            alone = play(fleet([THREE[1]], suites=[(m,)]), FedIoT(cross=cross, **settings))
            one = {k: t for k, t in both.ups[0][0].w.items() if modality_of(k) == m}
            assert near(one, autoencoders(alone.ups[0][0].w)) is not cross
            assert apart(one, both.downs[0][0].w) > 0.01


def bits(game: Game) -> list[bytes]:
    """Everything that a run has sent or kept."""
    kept = [encode(state).data for state in game.states.values()]
    return [
        encode(game.server).data,
        *kept,
        *(encode(u).data for r in game.ups for u in r.values()),
    ]


@pytest.mark.parametrize("balanced", [False, True])
def test_only_the_labels_of_the_public_windows_are_read(balanced: bool) -> None:
    method = FedIoT(lr=0.3, batch=2, balanced=balanced)
    data = windows(THREE)
    target = np.where(data.owner == OWNER, data.target, (data.target + 1) % 3)
    target[4:6] = 0  # nor how many there are of each
    before, hidden = play(mixed(), method, 2), play(mixed(target=target), method, 2)
    assert bits(before) == bits(hidden)
    shown = play(mixed(target=(data.target + (data.owner == OWNER)) % 3), method, 2)
    assert same(autoencoders(before.server.w), autoencoders(shown.server.w))
    assert apart(classifier(before.server.w), shown.server.w) > 1e-3


def test_windows_of_others_reach_the_classifier_through_encoders_alone() -> None:
    """Those of the first round change it no sooner than in the second."""
    inputs = {m: x.copy() for m, x in windows(THREE).inputs.items()}
    inputs["a"][4:10, :, ::2] += 1
    one, other = (play(mixed(**kw), FedIoT(lr=0.3)) for kw in ({}, {"inputs": inputs}))
    assert same(classifier(one.server.w), classifier(other.server.w))
    assert apart(autoencoders(one.server.w), other.server.w) > 1e-5
    one.round()
    other.round()
    assert apart(classifier(one.server.w), other.server.w) > 1e-7


def test_what_travels() -> None:
    """Down: the client's model. Up: its autoencoders, and of the owner the classifier as well."""
    game = play(mixed(), FedIoT(), rounds=2)
    for i, card in enumerate(game.bound.cards):
        own = {k for k in card.params if modality_of(k)}
        for downs, ups in zip(game.downs, game.ups, strict=True):
            assert paths(downs[i]) == set(card.params)
            assert paths(ups[i]) == (set(card.params) if i == OWNER else own)


def test_bytes() -> None:
    run = ran(mixed(), FedIoT(), rounds=2)
    lean = owned(run, lambda path: bool(modality_of(path)))
    head = sum(int(np.prod(s)) for k, s in run.cards[OWNER].params.items() if not modality_of(k))
    assert [r.bytes_up for r in run.history] == [4 * (lean + head)] * 2
    assert [r.bytes_down for r in run.history] == [4 * owned(run)] * 2
    assert not any(record.refused for record in run.history)


def test_everybody_predicts_with_the_common_model() -> None:
    game = play(mixed(held_out=3), FedIoT(lr=0.3), rounds=2)
    for i in range(3):
        client, state, _ = game.receive(i, 3)
        assert same(values(client.model), game.server.w.pick(client.card.params))
        batch = client.test.batch(torch.arange(3))
        client.model.eval()
        assert torch.equal(
            game.method.predict(client, state, batch), client.model(batch).prediction
        )


def test_without_the_owner_the_classifier_waits() -> None:
    game = play(mixed(), FedIoT(lr=0.3), cohorts=[None, [1, 2]])
    assert same(classifier(game.server.w), classifier(game.ups[0][OWNER].w))
    assert apart(autoencoders(game.server.w), game.downs[1][1].w) > 1e-3


def whole(client: Client) -> Batch:
    return client.train.batch(torch.arange(len(client.train)))


def test_losses_are_told_apart() -> None:
    """The loss of a round is that of the autoencoders, on the owner as on the others."""
    game = play(mixed(), FedIoT(lr=1e-9, classifier_epochs=1))
    for i in (OWNER, 1):
        client, state, down = game.receive(i, 2)
        game.method.local(client, state, down)
        found = float(rebuilding(client.model, whole(client)).detach())
        assert client.log["loss"] == pytest.approx(found, rel=1e-5)
        assert ("classifier_loss" in client.log) == (i == OWNER)
        if i == OWNER:
            found = float(classifying(client.model, whole(client)).detach())
            assert client.log["classifier_loss"] == pytest.approx(found, rel=1e-5)


NORM = "fusion.shared.layer.norm.running_mean"


def passing(model: Model, batch: Batch) -> Tensor:
    """The mean of what comes to the BatchNorm behind the fusion."""
    met: list[Tensor] = []
    norm = model.get_submodule(NORM.removesuffix(".running_mean"))
    hook = norm.register_forward_pre_hook(lambda _, inputs: met.append(inputs[0].detach().mean(0)))
    model(batch)
    hook.remove()
    return met[0]


def test_statistics_of_the_fusion_are_those_of_a_client_s_own_windows() -> None:
    """Clients that never train the fusion still meet it in training, the common one of the round:
    a tenth of the way to the mean of its input in each. The owner's hold no window with a sensor
    masked, and none goes over the wire."""
    normed = Architecture("strided", width=4, fusion="time_gru", embedding=6)
    game = play(mixed(models=(normed,)), FedIoT(lr=0.1, classifier_epochs=3), rounds=2)
    for i in range(3):
        expected = torch.zeros(6)
        for downs in game.downs:
            client, model = starting(game, i)
            downs[i].w.load_into(model)
            expected = 0.9 * expected + 0.1 * passing(model, whole(client))
        assert torch.allclose(game.states[i][NORM], expected, atol=1e-6)
        assert expected.abs().max() > 1e-3
        assert not any("running" in path for ups in game.ups for path in paths(ups[i]))
        assert not any("running" in path for downs in game.downs for path in paths(downs[i]))
        client, _, _ = game.receive(i, 3)
        assert torch.equal(client.model.by_path[1][NORM], game.states[i][NORM])


def present(of_b: Sequence[int]) -> dict[str, Any]:
    """Ten windows of two clients, of which only some have `b`."""
    return {"present": {"b": np.isin(np.arange(10), of_b), "a": np.ones(10, bool)}}


def test_windows_that_lack_a_sensor() -> None:
    """They serve the sensor that they have; what is written where the other should be is unread."""
    inputs = {m: x.copy() for m, x in windows().inputs.items()}
    inputs["b"][[3, 5, 6, 7, 8, 9]] = 7
    method = FedIoT(lr=0.3, batch=3, alpha=2)
    game = play(fleet(**present([0, 1, 2, 4])), method)
    assert bits(game) == bits(play(fleet(inputs=inputs, **present([0, 1, 2, 4])), method))
    sent = [game.ups[0][i].w for i in (0, 1)]
    for m, share in (("a", 0.4), ("b", 0.75)):  # 3 windows of the first client have b, one other
        mine = {k: t for k, t in sent[0].items() if modality_of(k) == m}
        expected = {k: share * t + (1 - share) * sent[1][k] for k, t in mine.items()}
        assert near({k: game.server.w[k] for k in expected}, expected)


def test_a_sensor_that_never_works_teaches_nothing() -> None:
    """Its autoencoder gets no gradient, its client has no weight in its mean, and the classifier
    learns from what there is."""
    game = play(fleet(**present(range(4, 10))), FedIoT(lr=0.3))
    branch = [k for k in game.server.w if modality_of(k) == "b"]
    assert same(game.ups[0][0].w.pick(branch), game.downs[0][0].w.pick(branch))
    assert same(game.server.w.pick(branch), game.ups[0][1].w.pick(branch))
    assert same(only(game.server.w, "fusion.blocks.b"), only(game.bound.params, "fusion.blocks.b"))
    assert apart(classifier(game.server.w), game.bound.params) > 1e-3


def test_one_modality() -> None:
    """All modalities and each alone are the same: one loss, not two."""
    lr = 0.3
    game = play(fleet(suites=[("a",)] * 2), FedIoT(lr=lr, classifier_epochs=1))
    client, model = starting(game, OWNER)
    start = classifier(game.bound.params)
    batch = batches(client)[0]
    slope = slopes(model, F.cross_entropy(model(batch).prediction, batch.target))
    assert near(classifier(game.server.w), {k: t - lr * slope[k] for k, t in start.items()})


def test_idle_client_is_scored_with_the_common_model() -> None:
    run = ran(fleet([(0, 1), (), (2, 1)], held_out=2), FedIoT(), rounds=2)
    assert [record.cohort for record in run.history] == [(0, 2), (0, 2)]
    assert set(run.scores()["client"]) == {0, 1, 2}


def test_a_task_without_classes() -> None:
    where = np.random.default_rng(0).standard_normal((10, 2)).astype(np.float32)
    game = play(fleet(target=where, task=Localisation(2)), FedIoT(lr=0.01), rounds=2)
    assert apart(classifier(game.server.w), game.bound.params) > 1e-4


def test_learns() -> None:
    """Windows are rebuilt better, and the public ones told apart by both sensors and by either."""
    method = FedIoT(lr=0.05, optimizer="adam", epochs=5, classifier_epochs=15, alpha=1)
    game = play(mixed(), method, rounds=4)
    client, model = starting(game, OWNER)
    before = rebuilding(model, whole(client))
    game.server.w.load_into(model)
    assert rebuilding(model, whole(client)) < 0.8 * before
    for seen in VIEWS:
        said = model(masked(whole(client), *seen)).prediction.argmax(1)
        assert torch.equal(said, whole(client).target)


@pytest.mark.parametrize("settings", [{"alpha": 0.0}, {"hidden": 0}, {"classifier_epochs": 0}])
def test_refuses_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(CommunisError, match=f"fediot needs {next(iter(settings))} >"):
        FedIoT(**settings)


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="FedIoT averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), FedIoT())


def test_refuses_half_a_message() -> None:
    game = play(mixed(), FedIoT())
    card, w = game.bound.cards[OWNER], game.ups[0][OWNER].w
    Up(w).check(card, game.method)
    Up(State(autoencoders(w))).check(card, game.method)
    for lost in ("encoders.a", "unimodal.b", "fusion.", "head."):
        with pytest.raises(CommunisError, match="complete classifier"):
            Up(State({k: t for k, t in w.items() if lost not in k})).check(card, game.method)


def test_public_windows_stay_as_recorded_if_their_owner_mislabels_its_own() -> None:
    """The classifier learns from the public windows."""
    data = fleet(suites=[("a", "b")] * 2)
    honest = play(data, FedIoT(batch=4), 1)
    lying = play(replace(data, attack=Attack("label_flip", (0,))), FedIoT(batch=4), 1)
    assert honest.bound.client(0, 1).public.owner == 0  # type: ignore[union-attr]
    assert same(honest.ups[0][0].w, lying.ups[0][0].w)

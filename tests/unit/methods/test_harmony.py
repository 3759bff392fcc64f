"""Harmony: one FedAvg per modality for `stage1` rounds, then fusion and head on every client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from communis import Batch, CommunisError, Model, Plan, Run
from communis.core.contract import modality_of
from communis.core.tasks import Localisation
from communis.exchange.wire import encode
from communis.methods.harmony import Harmony
from tests.unit.methods.tiny import (
    MIXED,
    SMALL,
    THREE,
    TWO,
    Values,
    apart,
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
    slopes,
    starting,
    task_loss,
    values,
)


def only(found: Values, *prefixes: str) -> Values:
    return {k: t for k, t in found.items() if k.startswith(prefixes)}


def wise(found: Values) -> Values:
    return only(found, "encoders.", "unimodal.")


def unimodal_slope(model: Model, batch: Batch) -> Values:
    """The gradient of every modality's own cross-entropy, each for its own branch alone."""
    found = {}
    for m in ("a", "b"):
        said = model.unimodal[m](model(batch).features[m])
        every = slopes(model, F.cross_entropy(said, batch.target))
        found |= {k: g for k, g in every.items() if modality_of(k) == m}
    return found


def fusion_slope(model: Model, batch: Batch) -> Values:
    """Encoders move at a quarter of the rate, the unimodal classifiers not at all."""
    found = slopes(model, task_loss(model, batch))
    return {
        k: 0.25 * g if k.startswith("encoders.") else g
        for k, g in found.items()
        if not k.startswith("unimodal.")
    }


def test_both_stages_by_hand() -> None:
    """A round of modality-wise learning, averaged by windows; two of fusion, each on its own."""
    lr = 0.3
    game = play(fleet(), Harmony(lr=lr, batch=2, stage1=1, finetune=0.25), rounds=3)
    ends = {}
    for i in (0, 1):
        client, model = starting(game, i)
        ends[i] = descend(model, batches(client, 2), lr, unimodal_slope)
    mean = {k: 0.4 * ends[0][k] + 0.6 * ends[1][k] for k in wise(ends[0])}
    assert near(game.server.w, mean, atol=1e-5)
    for i in (0, 1):
        own = ends[i] | mean
        for round in (2, 3):
            client, model = starting(game, i, round)
            fill(model, own)
            own = descend(model, batches(client, 2), lr, fusion_slope)
        assert near(game.models[i], own, atol=1e-5)
        assert apart(only(own, "encoders."), mean) > 1e-3
    assert apart(game.models[0], game.models[1]) > 0.01


def test_modalities_learn_apart() -> None:
    """What a client with both sensors sends of a branch is what it would send with that alone."""
    method = Harmony(lr=0.3, batch=2, epochs=2)
    both = play(fleet([TWO[1]]), method)
    for m in ("a", "b"):
        alone = play(fleet([TWO[1]], suites=[(m,)]), method)
        shared = {k: t for k, t in both.ups[0][0].w.items() if modality_of(k) == m}
        assert near(shared, alone.ups[0][0].w)
        assert apart(shared, both.downs[0][0].w) > 0.01


def test_what_travels() -> None:
    game = play(mixed(), Harmony(stage1=2), rounds=4)
    for i, card in enumerate(game.bound.cards):
        branches = {k for k in card.params if modality_of(k)}
        for round in (0, 1):
            assert paths(game.downs[round][i]) == paths(game.ups[round][i]) == branches
        assert [paths(game.downs[round][i]) for round in (2, 3)] == [branches, set()]
        assert not any(paths(game.ups[round][i]) for round in (2, 3))
        assert [game.downs[round][i].stage2 for round in range(4)] == [False, False, True, True]


def test_bytes() -> None:
    """One byte tells the stage. Stage 1: encoders and classifiers both ways; stage 2: what came of
    them down, once, and nothing up."""
    run = ran(mixed(), Harmony(stage1=1), rounds=3)
    branches = 4 * owned(run, lambda path: bool(modality_of(path)))
    assert [r.bytes_up for r in run.history] == [branches, 0, 0]
    assert [r.bytes_down for r in run.history] == [branches + 3, branches + 3, 3]
    assert not any(record.refused for record in run.history)


@pytest.mark.parametrize("finetune", [0.0, 0.1])
def test_what_does_not_train_keeps_its_bits(finetune: float) -> None:
    """With Adam and weight decay, which would move whatever they are handed."""
    method = Harmony(optimizer="adam", weight_decay=0.1, stage1=1, finetune=finetune)
    game = play(fleet(), method)
    start, first = game.bound.params, game.models[0]
    assert same(only(first, "fusion.", "head."), only(start, "fusion.", "head."))
    assert all(not torch.equal(t, start[k]) for k, t in wise(first).items())
    game.round()
    second = game.models[0]
    assert same(only(second, "unimodal."), only(game.server.w, "unimodal."))
    learnt = only(game.server.w, "encoders.")
    assert same(only(second, "encoders."), learnt) == (finetune == 0)
    assert apart(only(second, "fusion.", "head."), start) > 0.01


def test_who_comes_late() -> None:
    """A client that missed the first round of fusion starts from what stage 1 came to;
    one that took part keeps its own, whatever the others do."""
    cohorts = ([0, 1], [0], [1], [0])
    game = play(fleet(), Harmony(lr=0.3, stage1=1), cohorts=cohorts[:1])
    learnt = game.server.w
    for cohort in cohorts[1:]:
        game.round(cohort)
    assert same(game.downs[1][0].w, learnt)
    assert same(game.downs[2][1].w, learnt)
    assert not game.downs[3][0].w
    assert same(game.server.w, learnt)
    assert game.server.served.tolist() == [True, True]
    own = game.models[0]
    client, _, _ = game.receive(0, 5)
    assert same(values(client.model), own)
    assert apart(own, learnt) > 1e-3


def test_prediction() -> None:
    """The mean of what the common classifiers of the present sensors say, also between the stages;
    the head's as soon as the client itself has trained it."""
    game = play(fleet(held_out=3), Harmony(lr=0.3, stage1=1))
    client, state, down = game.receive(0, 2)
    assert down.stage2
    assert same(wise(values(client.model)), game.server.w)
    batch = client.test.batch(torch.arange(3))
    flags = {"a": torch.tensor([True, True, False]), "b": torch.tensor([True, False, False])}
    batch = Batch(batch.inputs, flags, batch.target)
    output = client.model(batch)
    a, b = (client.model.unimodal[m](output.features[m]) for m in ("a", "b"))
    expected = torch.stack([(a[0] + b[0]) / 2, a[1], torch.zeros(3)])
    assert torch.allclose(game.method.predict(client, state, batch), expected, atol=1e-6)
    game.round([0])
    client, state, _ = game.receive(0, 3)
    found = game.method.predict(client, state, batch)
    assert torch.equal(found, client.model(batch).prediction)
    assert not game.receive(1, 3)[1].fuses


def present(of_b: list[int]) -> dict[str, Any]:
    """Ten windows, of which only some have `b`."""
    return {"present": {"b": np.isin(np.arange(10), of_b), "a": np.ones(10, bool)}}


@pytest.mark.parametrize(("uniform", "shares"), [(False, (0.75, 0.25)), (True, (0.5, 0.5))])
def test_windows_that_have_the_modality_count(uniform: bool, shares: tuple[float, float]) -> None:
    """Three windows of the first client and one of the second have `b`."""
    game = play(fleet(**present([0, 1, 2, 4])), Harmony(lr=0.3, uniform=uniform))
    sent = [game.ups[0][i].w for i in (0, 1)]
    for m, by in (("a", (0.5, 0.5) if uniform else (0.4, 0.6)), ("b", shares)):
        expected = {k: by[0] * t + by[1] * sent[1][k] for k, t in sent[0].items() if f".{m}." in k}
        assert near({k: game.server.w[k] for k in expected}, expected)
        assert apart(sent[0], sent[1]) > 0.01


def test_a_sensor_that_never_works_teaches_nothing() -> None:
    """Its branch gets no gradient and its client has no weight in the mean."""
    game = play(fleet(**present([4, 5, 6, 7, 8, 9])), Harmony(lr=0.3))
    branch = [k for k in game.server.w if ".b." in k]
    assert same(game.ups[0][0].w.pick(branch), game.downs[0][0].w.pick(branch))
    assert same(game.server.w.pick(branch), game.ups[0][1].w.pick(branch))
    assert apart(game.ups[0][1].w.pick(branch), game.downs[0][1].w) > 0.01


def test_one_modality() -> None:
    """Nothing special: its branch is averaged, then fusion and head of one block train."""
    game = play(fleet(suites=[("a",)] * 2), Harmony(lr=0.3, stage1=1), rounds=2)
    assert {modality_of(k) for k in game.server.w} == {"a"}
    assert apart(only(game.models[0], "fusion.blocks.a", "head."), game.bound.params) > 1e-3


def test_lone_modality() -> None:
    game = play(fleet(suites=(("a", "b"), ("a",))), Harmony(lr=0.3))
    own = {k: t for k, t in game.server.w.items() if ".b." in k}
    assert own
    assert same(own, {k: game.models[0][k] for k in own})


def test_idle_client_is_not_sampled() -> None:
    """It is scored with what the others have learnt of its modalities."""
    run = ran(fleet([(0, 1), (), (2, 1)], held_out=2), Harmony(stage1=1), rounds=2)
    assert [record.cohort for record in run.history] == [(0, 2), (0, 2)]
    assert set(run.scores()["client"]) == {0, 1, 2}


def test_a_task_without_classes() -> None:
    where = np.random.default_rng(0).standard_normal((10, 2)).astype(np.float32)
    run = ran(fleet(target=where, task=Localisation(2)), Harmony(lr=0.01, stage1=1), rounds=2)
    assert all(np.isfinite(record.loss) for record in run.history)


def test_interrupted_between_and_within_stages(tmp_path: Path) -> None:
    """The contract's check of resuming, for rounds on both sides of the change."""
    plan = Plan(rounds=4, workers=1, participation=0.7, eval_every=1)
    many = fleet(THREE, MIXED, held_out=3)

    def numbers(run: Run) -> list[Any]:
        rounds = [(r.cohort, r.loss, r.bytes_up, r.bytes_down, r.scores) for r in run.history]
        return [rounds, encode(run.server).data, run.scores().to_csv()]

    with Run(many, Harmony(stage1=2), plan, folder=tmp_path / "whole") as whole:
        list(whole)
    for _ in range(plan.rounds):
        with Run(many, Harmony(stage1=2), plan, folder=tmp_path / "parts") as parts:
            next(iter(parts))
    assert numbers(parts) == numbers(whole)
    assert [record.bytes_up > 0 for record in whole.history] == [True, True, False, False]


@pytest.mark.parametrize("settings", [{"stage1": 0}, {"finetune": -0.1}])
def test_refuses_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(CommunisError, match="harmony needs stage1 >= 1 and finetune >= 0"):
        Harmony(**settings)


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="Harmony averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), Harmony())

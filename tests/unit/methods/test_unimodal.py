"""Unimodal: every sensor's classifier by itself, with or without a temperature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from communis import Batch, CommunisError, Model
from communis.core.contract import modality_of
from communis.core.tasks import Localisation
from communis.methods.unimodal import Unimodal
from tests.unit.methods.tiny import (
    TWO,
    Values,
    apart,
    batches,
    descend,
    fleet,
    near,
    play,
    ran,
    same,
    slopes,
    starting,
)

PRESENT = {
    "a": np.array([1, 0, 1, 1, 1, 1, 0, 1, 1, 1], bool),
    "b": np.array([1, 1, 0, 1, 0, 1, 1, 1, 0, 1], bool),
}


@pytest.mark.parametrize("ut", [True, False])
def test_training_all_at_once_is_training_each_by_itself(ut: bool) -> None:
    """The branch of one sensor, trained alone with its loss written out, ends at the same values;
    what belongs to no sensor stays as it began."""
    lr, data = 0.3, fleet(TWO, present=PRESENT).pool()
    game = play(data, Unimodal(lr=lr, batch=4, ut=ut))
    pooled = len(data)
    for m in ("a", "b"):
        client, model = starting(game, pooled)

        def slope(model: Model, batch: Batch, m: str = m) -> Values:
            rows = batch.present[m].nonzero()[:, 0]
            said = model.unimodal[m](model(batch).features[m])[rows]
            sigma = (said[:, -1:] / 2).exp() if ut else 1.0
            return slopes(model, F.cross_entropy(said[:, :-1] / sigma, batch.target[rows]))

        ends = descend(model, batches(client, 4), lr, slope)
        own = {k: t for k, t in ends.items() if modality_of(k) == m}
        assert own
        assert near({k: game.server.w[k] for k in own}, own, atol=1e-5)
        assert apart(own, game.bound.params) > 1e-3
    rest = {k: t for k, t in game.bound.params.items() if not modality_of(k)}
    assert rest
    assert same({k: game.server.w[k] for k in rest}, rest)


def test_a_sensor_alone_predicts_its_tempered_logits() -> None:
    data = fleet(TWO, held_out=3).pool()
    game = play(data, Unimodal(lr=0.3), rounds=2)
    client, state, _ = game.receive(0, 3)
    batch = client.test.batch(torch.arange(3))
    alone = Batch(
        batch.inputs, {**batch.present, "b": torch.zeros(3, dtype=torch.bool)}, batch.target
    )
    with torch.no_grad():
        said = client.model.unimodal["a"](client.model(batch).features["a"])
        expected = said[:, :-1] / (said[:, -1:] / 2).exp()
        assert torch.allclose(game.method.predict(client, state, alone), expected, atol=1e-6)
        both = game.method.predict(client, state, batch)
        other = game.method.predict(
            client,
            state,
            Batch(batch.inputs, {**batch.present, "a": alone.present["b"]}, batch.target),
        )
    assert torch.allclose(both, expected + other, atol=1e-6)


def test_without_temperature_the_log_variance_stays_at_zero() -> None:
    game = play(fleet(TWO).pool(), Unimodal(lr=0.3, ut=False), rounds=3)
    for m in ("a", "b"):
        assert not game.server.w[f"unimodal.{m}.out.weight"][-1].any()
        assert not game.server.w[f"unimodal.{m}.out.bias"][-1].any()


def test_the_run_scores_every_sensor_alone() -> None:
    run = ran(fleet(TWO, held_out=3), Unimodal(lr=0.1), rounds=2)
    table = run.scores()
    assert set(table[table["metric"] == "macro_f1"]["subset"]) == {"a", "b", "a+b"}


def test_only_classes_can_be_tempered() -> None:
    place = np.zeros((10, 2), np.float32)
    with pytest.raises(CommunisError, match="classification"):
        play(fleet(TWO, task=Localisation(2), target=place).pool(), Unimodal())

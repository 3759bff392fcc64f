"""Gradient inversion on models so small that it takes a second, and what regimes let through."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from communis.core.contract import Batch
from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.core.tasks import Localisation
from communis.models.zoo import architecture
from communis.results.probe import scenes
from communis.results.probe.inversion import (
    LAST_BIAS,
    Search,
    attempts,
    candidates,
    gradient,
    inferred_label,
    invert,
)
from communis.results.probe.regimes import KAPPA, Regime, regimes
from tests.unit.small import TINY, batch, network

STREAMS = Streams(0)


SMALL = replace(scenes.TINY, sglt=replace(scenes.TINY.sglt, gate="none"))
BRIEF = Search(restarts=1, iterations=50)


def small() -> scenes.Scene:
    """Images of 4 x 4 pixels: one token."""
    return scenes.pictures(1, STREAMS, SMALL, size=4)


def length(gradient: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(t.square().sum()) for t in gradient.values()))


@pytest.mark.slow
def test_a_window_is_seen_unless_everything_is_noised() -> None:
    scene = small()
    chosen = [r for r in regimes(scene.model, 2.0) if r.name in ("raw", "paper", "local")]
    tried = attempts(scene.model, scene.task, scene.batches, chosen, STREAMS, BRIEF)
    found = {one.regime: one for one in tried}
    for name in ("raw", "paper"):
        assert found[name].label_found is True
        assert found[name].ssim > 0.9
        assert found[name].found.loss < 0.001
    assert found["local"].ssim < 0.5
    assert found["local"].found.loss > 0.3
    for one in found.values():
        for x in one.found.windows.values():
            assert 0 <= float(x.min()) <= float(x.max()) <= 1


@pytest.mark.slow
def test_the_gate_can_be_differentiated_twice() -> None:
    scene = scenes.movements(1, STREAMS, scenes.TINY, steps=8)
    observed = gradient(scene.model, scene.task, scene.batches[0])
    label = candidates(scene.model, scene.task, observed, noised=False)
    short, longer = (
        invert(scene.model, scene.task, observed, STREAMS, label, Search(1, n)) for n in (2, 25)
    )
    assert longer.loss < 0.5 * short.loss


@pytest.mark.parametrize("label", range(3))
def test_the_label_is_the_sign_of_the_last_bias(label: int) -> None:
    model = network(TINY, {"a": 2})
    one = replace(batch({"a": 2}, 1), target=torch.tensor([label]))
    found = gradient(model, scenes.Classification(3), one)
    assert inferred_label(found) == label
    assert inferred_label({}) is None
    marked = {LAST_BIAS + "@cnn": found[LAST_BIAS]}
    assert inferred_label(marked, "@cnn") == label


def test_the_gradient_is_that_of_training() -> None:
    model, one = network(TINY, {"a": 2, "b": 1}), batch({"a": 2, "b": 1}, 4)
    task = scenes.Classification(3)
    found = gradient(model, task, one)
    task.loss(model(one).prediction, one.target).backward()
    for path, p in model.by_path[0].items():
        assert p.grad is not None
        torch.testing.assert_close(found[path], p.grad)


def test_an_unknown_target_that_cannot_be_inferred_is_asked_for() -> None:
    model = network(TINY, {"a": 2}, outputs=2)
    task = Localisation(2)
    one = Batch(batch({"a": 2}, 1).inputs, {"a": torch.ones(1, dtype=torch.bool)}, torch.ones(1, 2))
    observed = gradient(model, task, one)
    with pytest.raises(CommunisError, match=r"head\.out\.bias.*give it"):
        candidates(model, task, observed, noised=False)
    found = invert(model, task, observed, STREAMS, [one.target], Search(1, 2))
    assert found.target is one.target
    without = {k: t for k, t in observed.items() if k != LAST_BIAS}
    for noised in (False, True):
        with pytest.raises(CommunisError, match="give it"):
            candidates(model, scenes.Classification(2), without, noised)


@pytest.mark.slow
def test_where_the_last_bias_is_noised_every_label_is_tried() -> None:
    """Noise that turns the signs of the last bias must not mislead the attacker: the best match of
    all labels has the true one, and with it the window."""
    scene = small()
    truth = int(scene.batches[0].target)

    def turned(found: Mapping[str, Tensor], draw: np.random.Generator) -> dict[str, Tensor]:
        return {**found, LAST_BIAS: -found[LAST_BIAS]}

    noised = Regime("turned", "the last bias with its signs turned", turned, noised=True)
    clear = replace(noised, noised=False)
    right, wrong = attempts(scene.model, scene.task, scene.batches, [noised, clear], STREAMS, BRIEF)
    assert (right.label_found, wrong.label_found) == (True, False)
    assert int(right.found.target) == truth
    assert right.found.loss < wrong.found.loss
    assert right.ssim > 0.8 > 0.5 > wrong.ssim


def test_only_noise_makes_all_labels_candidates() -> None:
    scene = small()
    seen = {r.name: r for r in regimes(scene.model, 2.0)}
    assert [name for name, one in seen.items() if not one.noised] == ["raw", "paper", "theta_M raw"]
    observed = gradient(scene.model, scene.task, scene.batches[0])
    found = {
        noised: [int(one) for one in candidates(scene.model, scene.task, observed, noised)]
        for noised in (False, True)
    }
    assert found == {False: [int(scene.batches[0].target)], True: list(range(scenes.CLASSES))}


def test_a_seed_gives_the_same_reconstruction_and_restarts_the_best() -> None:
    scene = small()
    observed = gradient(scene.model, scene.task, scene.batches[0])
    label = candidates(scene.model, scene.task, observed, noised=False)
    one, again, best = (
        invert(scene.model, scene.task, observed, STREAMS, label, Search(n, 5)) for n in (1, 1, 3)
    )
    assert torch.equal(one.windows["depth"], again.windows["depth"])
    assert best.loss <= one.loss


def test_regimes_clip_noise_and_leave_out() -> None:
    scene = scenes.pictures(1, STREAMS)
    observed = gradient(scene.model, scene.task, scene.batches[0])
    found = {r.name: r.see(observed, np.random.default_rng(0)) for r in regimes(scene.model, 2.0)}
    theta = [path for path in observed if path.endswith("operator.theta")]
    assert len(theta) == 1
    assert length(found["raw"]) == pytest.approx(1.0, rel=1e-5)
    assert set(found["raw"]) == set(found["local"]) == set(observed)
    assert set(found["paper"]) == set(observed) - set(theta)  # and these are as they were
    for path, t in found["paper"].items():
        assert torch.equal(t, observed[path])
    for name in ("raw", "isotropic", "paper", "equal power"):
        assert list(found[f"theta_M {name}"]) == theta
    numbers = sum(t.numel() for t in observed.values())
    sigma = 2 * 1.993812  # analytic, 2 C
    assert length(found["local"]) == pytest.approx(sigma * math.sqrt(numbers), rel=0.05)
    rows = observed[theta[0]].shape[0]
    plain, shaped, alike = (
        length(found[f"theta_M {name}"]) for name in ("isotropic", "paper", "equal power")
    )
    more = math.sqrt((rows / 4 + KAPPA**2 * rows * 3 / 4) / rows)
    assert plain == pytest.approx(2.4224 * observed[theta[0]].numel() ** 0.5, rel=0.15)
    assert alike / plain == pytest.approx(more, rel=0.05)
    assert shaped / plain == pytest.approx(more, rel=0.15)


def test_a_model_without_the_operator_has_two_regimes() -> None:
    scene = scenes.pictures(1, STREAMS, architecture("cnn2d"))
    assert [one.name for one in regimes(scene.model, 2.0)] == ["raw", "local"]


def test_scenes_are_in_range_and_of_their_seed() -> None:
    for made in (scenes.pictures, scenes.movements):
        one, same, other = made(2, STREAMS), made(2, STREAMS), made(2, Streams(1))
        for a, b, c in zip(one.batches, same.batches, other.batches, strict=True):
            (x,), (y,), (z,) = (tuple(s.inputs.values()) for s in (a, b, c))
            assert len(a) == 1
            assert 0 <= float(x.min()) < float(x.max()) <= 1
            assert torch.equal(x, y)
            assert not torch.equal(x, z)

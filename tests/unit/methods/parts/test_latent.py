"""Class-wise statistics in a latent space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from communis.core.errors import CommunisError
from communis.core.state import State
from communis.methods.parts import latent
from communis.models.zoo import Architecture
from tests.unit.small import TINY_NORM, client, random, windows

HAS = torch.tensor([True, True, False])


def test_class_means_by_hand_and_none_for_a_class_that_is_not_there() -> None:
    v = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]], requires_grad=True)
    means, has = latent.class_means(v, torch.tensor([0, 0, 2]), 4)
    assert means.tolist() == [[2, 3], [0, 0], [5, 0], [0, 0]]
    assert has.tolist() == [True, False, True, False]
    means.sum().backward()  # type: ignore[no-untyped-call]
    assert v.grad is not None
    assert v.grad.tolist() == [[0.5, 0.5], [0.5, 0.5], [1, 1]]


def test_phi_is_the_squared_distance_or_the_smoothed_one() -> None:
    x, y = torch.tensor([3.0, 4.0]), torch.zeros(2)
    assert float(latent.phi(x, y, "mean")) == 25
    assert float(latent.phi(x, y, "median")) == pytest.approx(5, abs=1e-6)
    at = torch.zeros(2, requires_grad=True)
    latent.phi(at, y, "median").backward()  # type: ignore[no-untyped-call]
    assert at.grad is not None
    assert at.grad.tolist() == [0, 0]  # the norm itself has no slope there


def test_regulariser_by_hand() -> None:
    """Two of three classes in the batch, one of which has no target."""
    u = torch.tensor([[1.0, 0.0], [9.0, 9.0], [5.0, 5.0]])
    targets, known = torch.zeros(1, 3, 2), torch.tensor([[True, False, True]])
    found = latent.regulariser(u, HAS, targets, known, "mean")
    assert float(found) == 0.5  # 1 of class 0, over the two classes of the batch


def test_a_class_without_target_and_one_that_is_absent_have_no_slope() -> None:
    u = random(3, 2).requires_grad_()
    known = torch.tensor([[True, False, True]])
    for consensus in ("mean", "median"):
        loss = latent.regulariser(u, HAS, torch.zeros(1, 3, 2), known, consensus)
        (slope,) = torch.autograd.grad(loss, [u])
        assert slope[0].abs().sum() > 0
        assert slope[1:].abs().sum() == 0


def test_many_squared_pulls_are_one_towards_their_mean() -> None:
    """Their sum has |N| times the slope of one pull, for the squared distance only."""
    u, others = random(3, 2).requires_grad_(), random(5, 3, 2, seed=1)
    everything = torch.ones(3, dtype=torch.bool)

    def slope(targets: torch.Tensor, consensus: str) -> torch.Tensor:
        known = torch.ones(targets.shape[:2], dtype=torch.bool)
        loss = latent.regulariser(u, everything, targets, known, consensus) * len(targets)
        return torch.autograd.grad(loss, [u])[0]

    one = others.mean(0, keepdim=True)
    # Sums in another order, of slopes up to 10 in float32: they were 1e-6 apart on two processors.
    torch.testing.assert_close(slope(others, "mean"), 5 * slope(one, "mean"), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(slope(others, "median"), 5 * slope(one, "median"), atol=1e-2)


@pytest.mark.parametrize("size", [1e-6, 1.0, 7e5])
def test_equal_class_vectors_are_not_apart_by_rounding(size: float) -> None:
    """Their mean is rounded, so that they lie some 1e-8 of their length from it; what is apart is
    so in any unit."""
    same = (size * random(1, 8)).expand(3, 8)
    everything = torch.ones(3, dtype=torch.bool)
    assert float(latent.scale(same, everything)) == 1.0
    apart = size * random(3, 8)
    expected = size * float(latent.separation(random(3, 8), everything))
    assert float(latent.scale(apart, everything)) == pytest.approx(expected, rel=1e-5)  # float32


def test_separation_and_scale() -> None:
    u = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [50.0, 50.0]])
    assert float(latent.separation(u, HAS)) == 1
    assert float(latent.scale(u * 3, HAS)) == 3
    assert float(latent.scale(u, torch.tensor([True, False, False]))) == 1  # one class
    assert float(latent.separation(u, torch.zeros(3, dtype=torch.bool))) == 0


@pytest.mark.parametrize("classes", [1, 8, 9, 12])
def test_what_travels_is_the_classes_that_there_are_and_one_bit_each(classes: int) -> None:
    u, has = random(classes, 5), torch.arange(classes) % 3 == 0
    rows, bits = latent.pack(u, has)
    assert rows.numel() * 4 + bits.numel() == 4 * 5 * int(has.sum()) + math.ceil(classes / 8)
    back, known = latent.unpack(rows, bits, classes)
    assert torch.equal(known, has)
    assert torch.equal(back[has], u[has])
    assert not back[~has].any()
    latent.check(rows, bits, classes, 5)


def test_several_pulls_travel_as_well() -> None:
    u, has = random(3, 12, 4), random(3, 12) > 0
    back, known = latent.unpack(*latent.pack(u, has), 12)
    assert torch.equal(known, has)
    assert torch.equal(back, u * has[..., None])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"bits": torch.zeros(2)}, r"expected torch.uint8 \(2,\)"),
        ({"bits": torch.zeros(3, dtype=torch.uint8)}, r"expected torch.uint8 \(2,\)"),
        ({"bits": torch.tensor([0, 128], dtype=torch.uint8)}, "beyond the 12"),
        ({"rows": torch.zeros(2, 4)}, r"\(2, 4\), expected torch.float32 \(3, 4\)"),
        ({"rows": torch.zeros(3, 5)}, r"\(3, 5\)"),
        ({"rows": torch.zeros(3, 4, dtype=torch.float64)}, "float64"),
    ],
)
def test_a_message_that_cannot_be_is_refused(change: dict[str, Any], why: str) -> None:
    bits = torch.tensor([0b111, 0], dtype=torch.uint8)
    message = {"rows": torch.zeros(3, 4), "bits": bits} | change
    with pytest.raises(CommunisError, match=why):
        latent.check(message["rows"], message["bits"], 12, 4)


def test_translators_are_random_or_orthonormal() -> None:
    wide = client(models=(Architecture(width=4, embedding=400),))
    loose = latent.translator(wide, 16, common=False, orthonormal=False)
    assert loose.shape == (16, 400)
    assert loose.std() == pytest.approx(1 / 20, rel=0.05)
    assert not torch.equal(latent.translator(wide, 16, common=True, orthonormal=False), loose)
    stiff = latent.translator(wide, 16, common=False, orthonormal=True)
    torch.testing.assert_close(stiff @ stiff.T, torch.eye(16), atol=1e-6, rtol=0)


def test_a_translator_descends_as_adam_does_and_goes_on_where_it_was() -> None:
    one, other, start = client(), client(), random(2, 3)

    def loss(p: torch.Tensor) -> torch.Tensor:
        return (p - 1).square().sum()

    expected = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([expected], lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss(expected).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    at_once = latent.trained_translator(one, start, loss, 0.1, 5)
    torch.testing.assert_close(at_once, expected.detach())
    twice = latent.trained_translator(
        other, latent.trained_translator(other, start, loss, 0.1, 3), loss, 0.1, 2
    )
    assert torch.equal(twice, at_once)
    assert torch.equal(latent.trained_translator(client(), start, loss, 0.1, 0), start)


@pytest.mark.parametrize("batch_norms", [True, False])
def test_statistics_learn_nothing_and_go_by_the_batch_if_asked(batch_norms: bool) -> None:
    own = client(windows((0,) * 10), models=(TINY_NORM,))
    before = State.buffers(own.model)
    v, has = latent.statistics(own, 100, batch_norms)
    after = State.buffers(own.model)
    assert all(torch.equal(before[key], after[key]) for key in before)
    y = own.train.target
    own.model.train() if batch_norms else own.model.eval()
    with torch.no_grad():
        embedding = own.model(own.train.batch(torch.arange(10))).embedding
    for c in y.unique().tolist():
        torch.testing.assert_close(v[c], embedding[y == c].mean(0))
    assert has.tolist() == [c in y for c in range(3)]


def test_a_small_minibatch_holds_every_class() -> None:
    own = client(windows((0,) * 40, target=np.array([0] * 38 + [1, 2])))
    _, has = latent.statistics(own, 6, batch_norms=False)
    assert has.all()


def test_what_everybody_sent_last_is_collected_with_its_age() -> None:
    never = latent.NEVER
    nothing = torch.zeros(0, 2, 1), torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)
    both, first = torch.tensor([True, True]), torch.tensor([True, False])
    u, age, who = latent.latest(
        nothing, [(5, torch.ones(2, 1), both), (2, 2 * torch.ones(2, 1), first)]
    )
    assert who.tolist() == [2, 5]
    assert age.tolist() == [[0, never], [0, 0]]
    u, age, who = latent.latest((u, age, who), [(2, 3 * torch.ones(2, 1), first)])
    assert age.tolist() == [[0, never + 1], [1, 1]]
    assert u.flatten().tolist() == [3, 0, 1, 1]

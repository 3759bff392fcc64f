"""The mathematics of class prototypes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import CommunisError
from communis.methods.parts.prototypes import (
    PAIRS,
    Library,
    check,
    contrast,
    cosines,
    equal,
    means,
    pack,
    padded,
    personal,
    similarity_notes,
    unpack,
    warmup_weight,
    weight_notes,
    weights,
)
from tests.unit.methods.tiny import card

Alpha = Callable[[Library, int], Tensor]
N = torch.tensor([[3.0, 1, 0, 0], [1, 0, 2, 0], [2, 5, 6, 0]])  # class 3: nobody


def drawn(n: Tensor = N, d: int = 5, seed: int = 0) -> Tensor:
    """Means of unit vectors, zero without windows."""
    generator = torch.Generator().manual_seed(seed)
    p = F.normalize(torch.randn(*n.shape, d, generator=generator), dim=-1)
    return p * torch.rand(*n.shape, 1, generator=generator) * (n > 0)[..., None]


def by_hand(p: Tensor, n: Tensor, i: int, tau: float) -> tuple[Tensor, Tensor]:
    """Equations 5 to 8, loop by loop: alpha_i and the personalised prototypes."""
    alpha, found = torch.zeros(n.shape), torch.zeros(p.shape[1:])
    for c in range(n.shape[1]):
        peers = [j for j in range(len(n)) if n[j, c] > 0]
        if n[i, c] > 0:
            s = [float(p[i, c] @ p[j, c] / p[i, c].norm() / p[j, c].norm()) for j in peers]
            total = sum(math.exp(x / tau) for x in s)
            for j, x in zip(peers, s, strict=True):
                alpha[j, c] = math.exp(x / tau) / total
                found[c] += alpha[j, c] * p[j, c]
        elif peers:
            total = sum(float(n[j, c]) for j in peers)
            found[c] = sum((float(n[j, c]) / total * p[j, c] for j in peers), torch.zeros(5))
    return alpha, found


@pytest.mark.parametrize("i", range(3))
@pytest.mark.parametrize("tau", [0.1, 0.5, 1.5])
def test_equations_5_to_8(i: int, tau: float) -> None:
    p = drawn()
    alpha, expected = by_hand(p, N, i, tau)
    found = weights(p, N, i, tau, include_self=True)
    torch.testing.assert_close(found, alpha)
    torch.testing.assert_close(found.sum(0), (N[i] > 0).float())  # rows sum to 1
    torch.testing.assert_close(personal(p, found, means(p, N)), expected)


def test_limits_of_the_temperature() -> None:
    """Towards 0 a client hears itself alone; towards infinity everybody alike."""
    p, n = drawn(), N[:, :1]
    p = p[:, :1]
    cold, hot = weights(p, n, 1, 1e-3, True), weights(p, n, 1, 1e6, True)
    torch.testing.assert_close(personal(p, cold, means(p, n)), p[1], atol=1e-6, rtol=0)
    torch.testing.assert_close(personal(p, hot, means(p, n)), p.mean(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(equal(n), torch.full((3, 1), 1 / 3))


def test_alike_prototypes_stay() -> None:
    """If all have the same, everybody gets just that."""
    p, n = drawn()[:1, :2].expand(4, 2, 5), torch.tensor([[3.0, 1]]).expand(4, 2)
    for tau in (0.1, 0.5):
        found = personal(p, weights(p, n, 2, tau, True), means(p, n))
        torch.testing.assert_close(found, p[0])


def test_the_length_of_prototypes_does_not_matter_for_weights() -> None:
    p = drawn()
    scaled = p * torch.tensor([0.1, 2.0, 7.0])[:, None, None]
    torch.testing.assert_close(weights(p, N, 0, 0.5, True), weights(scaled, N, 0, 0.5, True))
    torch.testing.assert_close(cosines(p, 2)[2], (N[2] > 0).float())


def test_order_of_clients() -> None:
    """Clients in another order: weights move with them, what they get stays."""
    p, order = drawn(), torch.tensor([2, 0, 1])  # who was order[k] is now k
    for k, i in enumerate(order.tolist()):
        moved = weights(p[order], N[order], k, 0.5, True)
        torch.testing.assert_close(moved, weights(p, N, i, 0.5, True)[order])
        torch.testing.assert_close(
            personal(p[order], moved, means(p, N)),
            personal(p, weights(p, N, i, 0.5, True), means(p, N)),
        )


def test_without_oneself() -> None:
    """A client does not count for itself, unless it is the only one that has a class."""
    n = torch.tensor([[1.0, 1], [1, 0]])
    p = drawn(n)
    assert weights(p, n, 0, 0.5, include_self=False).tolist() == [[0, 1], [1, 0]]


def test_padding() -> None:
    """On paper: class 0 is (2 (1, 0) + 6 (0, 1)) / 8; class 1 nobody has."""
    n = torch.tensor([[2.0, 0], [6, 0], [0, 0]])
    p = torch.zeros(3, 2, 2)
    p[0, 0, 0] = p[1, 0, 1] = 1
    assert means(p, n).tolist() == [[0.25, 0.75], [0, 0]]
    filled = padded(p, n)
    assert filled[2].tolist() == [[0.25, 0.75], [0, 0]]
    assert torch.equal(filled[:2], p[:2])
    assert torch.equal(personal(p, weights(p, n, 2, 0.5, True), means(p, n)), means(p, n))


def test_contrast_by_hand() -> None:
    targets = F.normalize(drawn(torch.ones(2, 3)), dim=-1)
    h, y, tau = drawn(torch.ones(1, 4), seed=1)[0] * 9, torch.tensor([0, 2, 1, 0]), 0.5
    found = contrast(h, y, targets, tau)
    for j in range(2):
        total = 0.0
        for b in range(4):
            cosine = [float(F.cosine_similarity(h[b], t, dim=0)) for t in targets[j]]
            top = math.exp(cosine[y[b]] / tau)
            total -= math.log(top / sum(math.exp(x / tau) for x in cosine))
        assert float(found[j]) == pytest.approx(total / 4, rel=1e-5)


def test_contrast_is_bounded() -> None:
    """0 <= L <= 2 / tau + log(classes), reached by opposite vectors."""
    tau, x = 0.5, torch.tensor([1.0, 0])
    targets = torch.stack([-x, x, x])[None]
    worst = contrast(x[None], torch.tensor([0]), targets, tau)
    assert float(worst) == pytest.approx(2 / tau + math.log(2 + math.exp(-2 / tau)), rel=1e-6)
    assert float(worst) <= 2 / tau + math.log(3)
    assert float(contrast(x[None], torch.tensor([0]), -targets, 0.01)) >= 0


def test_a_class_that_nobody_has_is_in_no_denominator() -> None:
    p = F.normalize(padded(drawn(), N), dim=-1)
    h, y = drawn(torch.ones(1, 6), seed=2)[0], torch.tensor([0, 1, 2, 2, 1, 0])
    torch.testing.assert_close(contrast(h, y, p, 0.5), contrast(h, y, p[:, :3], 0.5))
    unknown = torch.tensor([3, 1, 3, 2, 3, 0])  # such windows add nothing
    kept = torch.tensor([1, 3, 5])
    expected = contrast(h[kept], unknown[kept], p, 0.5) * 3 / 6
    torch.testing.assert_close(contrast(h, unknown, p, 0.5), expected)
    nothing = contrast(h, y, torch.zeros(2, 3, 5), 0.5)
    assert nothing.tolist() == [0, 0]


def test_contrast_of_one_set_twice_is_alike() -> None:
    """If everybody's prototypes are the personalised ones, L_p = L_g."""
    p = F.normalize(drawn(torch.ones(1, 3)), dim=-1).expand(4, 3, 5)
    found = contrast(drawn(torch.ones(1, 4), seed=3)[0], torch.tensor([0, 1, 2, 0]), p, 0.5)
    torch.testing.assert_close(found[1:].mean(), found[0])


def test_warm_up() -> None:
    lam = [warmup_weight(t, 0.0, 1.0, 50) for t in range(100)]
    assert lam[0] == 0
    assert lam[25] == pytest.approx(0.5)
    assert lam[50] == lam[99] == 1
    assert all(a <= b for a, b in pairwise(lam))
    assert warmup_weight(0, 0.3, 0.8, 0) == 0.8  # no warm-up
    assert warmup_weight(1, 0.2, 0.6, 2) == pytest.approx(0.4)


@pytest.mark.parametrize("sparse", [False, True])
def test_what_travels(sparse: bool) -> None:
    p = drawn()
    rows, bits = pack(p, sparse)
    assert torch.equal(unpack(rows, bits, 4), p)
    assert rows.numel() == (7 * 5 if sparse else 3 * 4 * 5)  # seven of twelve are there
    assert bits.numel() == (3 if sparse else 0)


def library() -> Library:
    return Library(drawn(), N, torch.tensor([0.0, 4, 1]), torch.tensor([1, 4, 7]))


def test_library_keeps_who_is_absent() -> None:
    """A round in which 4 and the new 2 were heard. 4 told no counts: those of before hold; of 2
    nobody knows any, so each class is one window."""
    p = drawn(seed=5)
    none, whole = torch.zeros(0), torch.zeros(0, dtype=torch.uint8)
    after = library().updated([(4, p[1], whole, none), (2, *pack(p[0], True), none)])
    assert after.who.tolist() == [1, 2, 4, 7]
    assert after.age.tolist() == [1, 0, 0, 2]
    assert torch.equal(after.p, torch.stack([drawn()[0], p[0], p[1], drawn()[2]]))
    assert after.n.tolist() == [N[0].tolist(), [1, 1, 0, 0], N[1].tolist(), N[2].tolist()]
    told = after.updated([(2, p[0], whole, torch.tensor([8.0, 9, 0, 0]))])
    assert told.n[1].tolist() == [8, 9, 0, 0]


def test_stale_prototypes_count_for_their_owner_only() -> None:
    assert library().fresh(4, 0)[0].who.tolist() == [1, 4, 7]  # 0: for ever
    found, place = library().fresh(1, 3)
    assert (found.who.tolist(), place) == ([1, 7], 0)
    found, place = library().fresh(4, 3)
    assert (found.who.tolist(), place) == ([1, 4, 7], 1)
    assert library().fresh(9, 3)[1] == -1
    nobody, place = Library.empty(4, 5).fresh(0, 0)
    assert (len(nobody.who), place) == (0, -1)


def noted(known: Library, alpha: Alpha, stale: int, node: int) -> dict[str, float]:
    return similarity_notes(known) | weight_notes(known, alpha, stale, node)


def test_course() -> None:
    """The mean over pairs in closed form is the mean over pairs one by one."""
    found = noted(library(), lambda known, i: weights(known.p, known.n, i, 0.5, True), 0, -1)
    pairs = []
    for i, j in ((0, 1), (0, 2), (1, 2)):
        shared = ((N[i] > 0) & (N[j] > 0)).nonzero().flatten()
        values = [float(cosines(drawn(), i)[j, c]) for c in shared]
        name = f"alike/{library().who[i]}-{library().who[j]}"
        assert found[name] == pytest.approx(sum(values) / len(values), abs=1e-6)
        pairs += values
    assert found["alike"] == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)
    for i in (1, 4, 7):
        assert sum(found[f"weight/{i}-{j}"] for j in (1, 4, 7)) == pytest.approx(1)
    apart = []
    for i in range(3):
        alpha = weights(drawn(), N, i, 0.5, True)
        for c in (N[i] > 0).nonzero().flatten():
            even = (N[:, c] > 0) / (N[:, c] > 0).sum()
            apart.append(float((alpha[:, c] - even).abs().sum()) / 2)
    assert found["moved"] == pytest.approx(sum(apart) / len(apart), abs=1e-6)
    plain = noted(library(), lambda known, i: equal(known.n), 0, -1)
    assert plain["moved"] == pytest.approx(0, abs=1e-6)
    recent = noted(library(), lambda known, i: weights(known.p, known.n, i, 0.5, True), 3, -1)
    assert "weight/1-4" not in recent  # 4 is too old for others
    assert "weight/4-1" in recent
    node = noted(library(), lambda known, i: weights(known.p, known.n, i, 0.5, True), 0, 4)
    own = {f"weight/4-{j}" for j in (1, 4, 7)}  # a node of a graph speaks for itself
    assert {name for name in node if name.startswith("weight")} == own


def test_course_without_pairs() -> None:
    """Two clients without a common class have no similarity; in a large fleet only the mean is
    kept."""
    n = torch.eye(2)
    apart = Library(drawn(n), n, torch.zeros(2), torch.arange(2))
    found = noted(apart, lambda known, i: weights(known.p, known.n, i, 0.5, True), 0, -1)
    assert found.pop("moved") == 0
    assert found == {"weight/0-0": 1, "weight/0-1": 0, "weight/1-0": 0, "weight/1-1": 1}
    many = torch.ones(PAIRS + 1, 2)
    large = Library(drawn(many), many, torch.zeros(PAIRS + 1), torch.arange(PAIRS + 1))
    assert list(noted(large, lambda known, i: known.n, 0, -1)) == ["alike"]
    assert noted(Library.empty(2, 5), lambda known, i: known.n, 0, -1) == {}


def test_what_cannot_be_true_is_refused() -> None:
    own = replace(card(0, samples=9), sizes={"classes": 4, "embedding": 5})
    p, n, bits = drawn()[0], N[0], torch.zeros(0, dtype=torch.uint8)
    check(p, bits, n, own, False)
    check(p, bits, n[:0], own, False)
    check(*pack(p, True), n, own, True)
    for wrong, message in (
        ((p[:3], bits, n), "expected torch.float32 .4, 5."),
        ((p.double(), bits, n), "float64"),
        ((p, torch.ones(1, dtype=torch.uint8), n), "expected no bits"),
        ((p, torch.zeros((), dtype=torch.uint8), n), "expected no bits"),
        ((p, torch.zeros(0, 5, dtype=torch.uint8), n), "expected no bits"),
        ((p * 99, bits, n), "longer than 1"),
        ((p, bits, n[:2]), "expected torch.float32 .4,. or .0,."),
        ((p, bits, n.double()), "float64"),
        ((p, bits, n + 0.5), "sum of at most 9"),
        ((p, bits, n - 1), "sum of at most 9"),
        ((p, bits, n * 9), "sum of at most 9"),
        ((p, bits, torch.tensor([3.0, 0, 0, 0])), "whose count in n is 0"),
    ):
        with pytest.raises(CommunisError, match=message):
            check(*wrong, own, False)
    with pytest.raises(CommunisError, match="has is"):
        check(p, bits, n, own, True)

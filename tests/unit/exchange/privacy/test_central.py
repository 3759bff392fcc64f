"""Central privacy: sums with noise, and nothing of single clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from torch import Tensor

from communis import CommunisError, State
from communis.core.contract import Card, Sent
from communis.core.replies import presence, samples, uniform
from communis.exchange.privacy.central import Central, Layout, NoisedReplies, blind, layout
from communis.exchange.privacy.messages import blank, fractions


@dataclass(frozen=True)
class Up:
    w: State
    d: State
    p: Annotated[Tensor, "classes", 2]
    loss: float


@dataclass(frozen=True)
class Counted:
    n: int


@dataclass(frozen=True)
class Undeclared:
    t: Tensor


def card(id: int, *paths: str) -> Card:
    shapes = dict.fromkeys(paths, (2,))
    return Card(id, ("acc",), shapes, 40 + id, {"acc": 30}, {"classes": 3})


BOTH, ONE = card(0, "a", "b"), card(1, "a")
CARDS = [BOTH, BOTH, ONE]


def whole() -> Layout:
    return layout(Up, CARDS, lambda c: Sent(list(c.params)))


def flat(**values: Any) -> dict[str, Tensor]:
    return {key.replace("_", "/"): torch.tensor(value) for key, value in values.items()}


def quiet(**changes: Any) -> Central:
    return Central(**{"z": 1e-12, "clip": 5.0, "q": 0.5, **changes})


def test_the_layout_is_that_of_all_clients() -> None:
    found = whole()
    assert list(found.zeros) == ["w/a", "w/b", "d/a", "d/b", "p", "loss"]
    assert found.holders == {"w/a": 3, "w/b": 2, "d/a": 3, "d/b": 2, "p": 3, "loss": 3}
    assert found.zeros["p"].shape == (3, 2)
    assert found.clients == 3
    assert fractions(Up) == ["w", "d", "p", "loss"]
    assert fractions(Counted) == fractions(None) == []


def test_messages_that_cannot_be_noised_are_refused() -> None:
    with pytest.raises(CommunisError, match=r"whole numbers \(n\)"):
        layout(Counted, CARDS, lambda c: Sent(list(c.params)))
    with pytest.raises(CommunisError, match="shape of field t is not declared"):
        layout(Undeclared, CARDS, lambda c: Sent(list(c.params)))


def test_clients_are_drawn_by_coins() -> None:
    central, generator = quiet(q=0.3), np.random.default_rng(0)
    sizes = [len(central.draw(range(50), generator)) for _ in range(400)]
    assert np.mean(sizes) == pytest.approx(15, rel=0.04)  # its standard error is 0.16
    assert np.var(sizes) == pytest.approx(50 * 0.3 * 0.7, rel=0.2)  # a fixed number has none
    assert central.draw([], generator) == []


def test_the_whole_message_is_clipped_before_it_is_summed() -> None:
    """One message of length 10 counts for 5, one of length 1 as it is; the bound is for all fields
    together."""
    reference = flat(w_a=[1.0, 1.0], w_b=[1.0, 1.0])
    long = blank(Up, BOTH, ["a", "b"]) | flat(w_a=[7.0, 1.0], w_b=[1.0, 1.0], d_a=[8.0, 0.0])
    short = blank(Up, ONE, ["a"]) | flat(w_a=[1.0, 2.0])
    made = quiet().release([long, short], reference, whole(), 5.0, 1, np.random.default_rng(0))
    assert made.clipped == 1
    assert made.clip == 5.0
    torch.testing.assert_close(made.total["w/a"], torch.tensor([3.0, 1.0]))
    torch.testing.assert_close(made.total["d/a"], torch.tensor([4.0, 0.0]))
    torch.testing.assert_close(made.total["w/b"], torch.zeros(2))


def test_the_noise_is_on_everything_whoever_came() -> None:
    """z C on the sum; also for parts of the model that nobody of the round has, and for nobody."""
    big = Card(0, (), {"a": (50_000,)}, 1, {}, {"classes": 3})
    shape = layout(Up, [big], lambda c: Sent(["a"]))
    for clients in (0, 3):
        sent = [blank(Up, big, ["a"])] * clients
        made = Central(2.0, 5.0, 0.5).release(sent, {}, shape, 5.0, 1, np.random.default_rng(0))
        assert float(made.total["w/a"].std()) == pytest.approx(10.0, rel=0.02)
        assert bool(made.total["loss"] != 0)


def replies(total: dict[str, Tensor], reference: dict[str, Tensor]) -> NoisedReplies[Up]:
    shape = whole()
    return NoisedReplies(shape, reference, {**shape.zeros, **total}, 0.5)


def test_means_have_a_fixed_denominator() -> None:
    """Expected are 0.5 * 3 clients with path a and 0.5 * 2 with b, whoever came."""
    found = replies(
        flat(w_a=[3.0, 0.0], w_b=[1.0, 0.0], d_a=[6.0, 0.0]), flat(w_a=[1.0, 1.0], w_b=[5.0, 5.0])
    )
    mean = found.mean(lambda up: up.w, by=uniform)
    torch.testing.assert_close(mean["a"], torch.tensor([3.0, 1.0]))
    torch.testing.assert_close(mean["b"], torch.tensor([6.0, 5.0]))
    torch.testing.assert_close(found.mean(lambda up: up.p, by=uniform), torch.zeros(3, 2))
    assert found.sum(lambda up: up.d)["a"].tolist() == [6.0, 0.0]
    assert len(found) == 2


def test_what_central_privacy_does_not_reveal() -> None:
    found = replies({}, flat(w_a=[1.0, 1.0], w_b=[5.0, 5.0]))
    for by in (samples, presence):
        with pytest.raises(CommunisError, match=r"set method\.uniform = true"):
            found.mean(lambda up: up.w, by=by)
    with pytest.raises(CommunisError, match="looks at single messages"):
        found.each()
    with pytest.raises(CommunisError, match="counts as well as sums"):
        found.classwise(lambda up: up.p, lambda up: up.p)
    with pytest.raises(CommunisError, match="how many samples"):
        found.coverage(lambda up: up.w)
    with pytest.raises(CommunisError, match="computes something"):
        found.mean(lambda up: up.w * 2.0, by=uniform)
    with pytest.raises(CommunisError, match="not sent as a change"):
        found.sum(lambda up: up.w)


def test_the_bound_follows_the_quantile() -> None:
    """With all updates below it the bound falls by exp(-rate (1 - quantile)), with none it rises by
    exp(rate quantile)."""
    central = Central(1e-9, 1.0, 1.0, quantile=0.3, rate=0.2)
    many = [Card(i, (), BOTH.params, 1, {}, {"classes": 3}) for i in range(2000)]
    shape = layout(Up, many, lambda c: Sent(list(c.params)))
    for length, expected in ((0.5, math.exp(-0.2 * 0.7)), (2.0, math.exp(0.2 * 0.3))):
        up = blank(Up, BOTH, ["a", "b"]) | flat(d_a=[length, 0.0])
        made = central.release([up] * 2000, {}, shape, 1.0, 1, np.random.default_rng(0))
        assert made.clip == pytest.approx(expected, rel=0.05)


def test_the_share_below_the_bound_costs_a_part_of_the_budget() -> None:
    """1 / z^2 is the sum of both parts: sums get more noise than without the quantile."""
    big = Card(0, (), {"a": (50_000,)}, 1, {}, {"classes": 3})
    shape = layout(Up, [big], lambda c: Sent(["a"]))
    plain, adaptive = (
        Central(2.0, 1.0, 1.0, quantile=quantile, rate=0.2)
        .release([], {}, shape, 1.0, 1, np.random.default_rng(0))
        .total["w/a"]
        .std()
        for quantile in (0.0, 0.5)
    )
    coin = max(1 / 20, 2.0)
    expected = (2.0**-2 - (2 * coin) ** -2) ** -0.5
    assert float(plain) == pytest.approx(2.0, rel=0.02)
    assert float(adaptive) == pytest.approx(expected, rel=0.02)


def test_a_blind_card_tells_no_numbers() -> None:
    seen = blind(BOTH)
    assert (seen.samples, dict(seen.samples_by_modality)) == (2**30, {"acc": 2**30})
    assert seen.params is BOTH.params


def test_the_quantile_is_that_of_all_clients_even_if_they_share_nothing() -> None:
    """Two groups with a part each: the bound goes by both together."""
    mixed = [Card(i, (), {f"part{i % 2}": (1,)}, 1, {}, {"classes": 3}) for i in range(2000)]
    shape = layout(Up, mixed, lambda c: Sent(list(c.params)))
    sent = [blank(Up, c, list(c.params)) for c in mixed]  # all of length 0, so below the bound
    central = Central(1e-9, 1.0, 1.0, quantile=0.5, rate=0.2)
    made = central.release(sent, {}, shape, 1.0, 1, np.random.default_rng(0))
    assert made.clip == pytest.approx(math.exp(-0.2 * 0.5), rel=0.05)

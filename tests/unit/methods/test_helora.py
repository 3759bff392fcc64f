"""HeLoRA: slow devices hold the first ranks of every LoRA pair; the server pads with zeros."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from communis import CommunisError, FedAvg, Fleet, Plan, Run
from communis.exchange.wire import decode, encode
from communis.methods.helora import HeLoRA, Up
from communis.models.zoo import architecture
from communis.run.backends.mock import Mock
from tests.unit.methods.tiny import (
    SMALL,
    THREE,
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
)

LORA = architecture("tiny_lora", weights="random")
RHO, LR = 8, 0.3
DEVICES = ("relief-full", "relief-mid", "relief-low")  # 275, 21 and 5 TOPS
RANKS = (8, 4, 2)


def speeds(**changes: Any) -> Fleet:
    """Both sensors on the fast client, a on the middling and b on the slow one."""
    return replace(mixed(models=(LORA,)), devices=DEVICES, **changes)


def axis(path: str) -> int | None:
    return 0 if path.endswith("lora_A") else 1 if path.endswith("lora_B") else None


def cut(values: Values, r: int) -> dict[str, Tensor]:
    """The same values with zeros beyond rank r."""
    found = {path: t.clone() for path, t in values.items()}
    for path, t in found.items():
        if (at := axis(path)) is not None:
            t.narrow(at, r, RHO - r).zero_()
    return found


@pytest.fixture(scope="module")
def game() -> Game:
    return play(speeds(), HeLoRA(lr=LR, batch=2), rounds=2)


def test_two_rounds_by_hand(game: Game) -> None:
    """Every client descends from the server's first ranks; then the mean over all holders by
    samples, with zeros where a client has no such rank."""
    assert game.server.r.tolist() == list(RANKS)
    w: dict[str, Tensor] = dict(game.bound.params)
    for round in (1, 2):
        ends: dict[int, dict[str, Tensor]] = {}
        for i, r in enumerate(RANKS):
            client, model = starting(game, i, round)
            fill(model, cut({path: w[path] for path in client.card.params}, r))
            descend(model, batches(client, 2), LR)
            ends[i] = cut({path: p.detach() for path, p in model.by_path[0].items()}, r)
        for path in w:
            held = [(len(THREE[i]), end[path]) for i, end in ends.items() if path in end]
            w[path] = sum(n * t for n, t in held) / sum(n for n, _ in held)  # type: ignore[assignment]
    assert near(game.server.w, w, atol=1e-5)
    assert apart(game.server.w, play(speeds(), FedAvg(lr=LR, batch=2), 2).server.w) > 1e-3


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.9}, {"optimizer": "adam"}, {"weight_decay": 0.1}]
)
def test_nothing_happens_beyond_the_rank(settings: dict[str, Any]) -> None:
    """Where a row of A and the column of B are both zero, both gradients are: whatever the
    optimiser, the client's model has rank r_n, and loses nothing when only that is sent."""
    game = play(speeds(), HeLoRA(lr=0.05, batch=2, **settings), rounds=2)
    for i, r in enumerate(RANKS):
        client, _, down = game.receive(i, 3)
        up, model = game.ups[1][i], game.models[i]
        assert (
            set(down.lora) == set(up.lora) == {p for p in client.card.params if p[-6:-1] == "lora_"}
        )
        for path, sent in up.lora.items():
            at = axis(path)
            assert at is not None
            assert sent.shape[at] == down.lora[path].shape[at] == r
            assert torch.equal(model[path].narrow(at, 0, r), sent)
            assert not model[path].narrow(at, r, RHO - r).any()
            assert torch.equal(client.model.by_path[0][path].narrow(at, 0, r), down.lora[path])
        assert all(bool(t.any()) for t in up.lora.values())


@pytest.mark.parametrize(
    ("slowness", "rank"),
    [(1.0, 8), (1.4, 8), (1.5, 7), (2.0, 7), (4.0, 6), (13.1, 4), (55.0, 2), (1e6, 2)],
)
def test_ranks_fall_with_speed(slowness: float, rank: int) -> None:
    """One less for every halving, in round numbers, and never below `least`."""
    assert HeLoRA().rank(RHO, slowness) == rank
    assert HeLoRA(least=5).rank(RHO, slowness) == max(5, rank)
    assert HeLoRA(least=12).rank(RHO, slowness) == RHO  # a model has no more than it has
    assert HeLoRA().rank(1, slowness) == 1
    assert HeLoRA().rank(0, slowness) == 0


def test_padding_dilutes_high_ranks() -> None:
    """Nobody learns anything, and yet rows that not all holders have shrink by their share, round
    by round: the fast client's 4 windows of 6 with b, whose other holder stops at rank 2."""
    game = play(speeds(), HeLoRA(epochs=0), rounds=3)
    path = "fusion.blocks.b.lora_A"
    before, after = game.bound.params[path], game.server.w[path]
    torch.testing.assert_close(after[:2], before[:2])
    torch.testing.assert_close(after[2:], before[2:] * (4 / 6) ** 3)
    plain = play(speeds(), HeLoRA(epochs=0, uniform=True), rounds=3).server.w[path]
    torch.testing.assert_close(plain[2:], before[2:] * 0.5**3)


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("lora", [True, False])
def test_without_lora_or_with_equal_devices_it_is_fedavg(uniform: bool, lora: bool) -> None:
    """Bit for bit and byte for byte: a CNN on devices of any speed, and LoRA where all are equally
    fast."""
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "uniform": uniform}
    some = mixed(models=(LORA,)) if lora else replace(mixed(), devices=DEVICES)
    ours, theirs = play(some, HeLoRA(**settings), 2), play(some, FedAvg(**settings), 2)
    assert same(ours.server.w, theirs.server.w)
    for i in range(3):
        assert bool(ours.ups[1][i].lora) == lora
        assert encode(ours.ups[1][i]).payload == encode(theirs.ups[1][i]).payload
        assert encode(ours.downs[1][i]).payload == encode(theirs.downs[1][i]).payload


def test_bytes_fall_with_the_rank() -> None:
    """4 (|w| - |LoRA|) + 4 |LoRA| r_n/rho, both ways."""
    run = ran(speeds(), HeLoRA())
    rest = owned(run, lambda path: axis(path) is None)
    lora = sum(
        math.prod(shape) * r // RHO
        for card, r in zip(run.cards, RANKS, strict=True)
        for path, shape in card.params.items()
        if axis(path) is not None
    )
    record = run.history[0]
    assert record.bytes_up == record.bytes_down == 4 * (rest + lora)
    assert record.bytes_up < 0.8 * ran(speeds(), FedAvg()).history[0].bytes_up


def test_fast_client_away() -> None:
    """Ranks that nobody in the round has become zero: the mean is over those who answer. A later
    round cannot revive them, as both factors are gone."""
    game = play(speeds(), HeLoRA(lr=0.3), cohorts=[[1, 2], None])
    path = "fusion.shared.lora_B"
    assert game.server.w[path][:, :4].any()
    assert not game.server.w[path][:, 4:].any()
    assert not game.server.w["fusion.blocks.a.lora_A"][4:].any()


def refused(game: Game, i: int, **changes: Tensor | None) -> str:
    """Why a client's message with these slices in place of its own is refused."""
    up = game.ups[0][i]
    lora = {path: t for path, t in {**up.lora, **changes}.items() if t is not None}
    with pytest.raises(CommunisError) as caught:
        decode(encode(Up(up.w, lora)).data, Up).check(game.bound.cards[i], game.method)
    return str(caught.value)


def test_slices_are_vetted(game: Game) -> None:
    """Names, shapes, one rank for all and the type, before anything is added up."""
    for i in range(3):
        game.ups[0][i].check(game.bound.cards[i], game.method)
    path, other = "fusion.blocks.a.lora_A", "fusion.blocks.b.lora_A"
    own = game.ups[0][1].lora[path]
    assert own.shape == (4, 64)
    assert f"see {path}" in refused(game, 1, **{path: None})
    assert f"see {other}" in refused(game, 1, **{other: own})
    assert "see head.out.weight" in refused(game, 1, **{"head.out.weight": own})
    assert f"lora/{path} is torch.float32 (3, 64)" in refused(game, 1, **{path: own[:3]})
    assert "expected torch.float32 (4, 64)" in refused(game, 1, **{path: own[:, :63]})
    assert "(8, " in refused(game, 1, **{path: torch.zeros(9, 64)})  # the model has no ninth rank
    assert "torch.float64" in refused(game, 1, **{path: own.double()})
    every = dict.fromkeys(game.ups[0][1].lora, torch.zeros(()))
    assert "()" in refused(game, 1, **every)
    empty = {p: t.narrow(axis(p) or 0, 0, 0) for p, t in game.ups[0][1].lora.items()}
    assert "expected torch.float32 (1, " in refused(game, 1, **empty)


def test_poisoned_slice_is_refused_in_a_run() -> None:
    """NaN in a slice: the client is left out, the server stays finite."""
    run = Run(speeds(), HeLoRA(lr=0.3), Plan(rounds=1, workers=1, eval_every=0))

    def poison(ask: Any, answer: Any) -> Any:
        if ask.kind != "train" or ask.client != 1:
            return answer
        up = decode(answer.up, Up)
        up.lora["fusion.shared.lora_B"][0, 0] = float("nan")
        return replace(answer, up=encode(up).data)

    run.backend = Mock(run.backend, poison)
    with run:
        (record,) = list(run)
    assert record.refused == ((1, "lora/fusion.shared.lora_B holds NaN or Inf"),)
    assert all(bool(torch.isfinite(t).all()) for t in run.server.w.values())


def test_settings_and_models_that_are_refused() -> None:
    with pytest.raises(CommunisError, match="least >= 1"):
        HeLoRA(least=0)
    with pytest.raises(CommunisError, match="no ema of LoRA slices"):
        HeLoRA(ema="const")
    with pytest.raises(CommunisError, match="HeLoRA averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), HeLoRA())


def test_whole_clients_hold_every_branch_as_in_fedavg() -> None:
    """A branch whose sensor is absent comes back as it was sent, at the client's rank."""
    game = play(speeds(), HeLoRA(lr=LR, batch=2, whole=True))
    assert len({frozenset(card.params) for card in game.bound.cards}) == 1
    up, down = game.ups[0][1], game.downs[0][1]  # it has no sensor b
    absent = [path for path in (*up.w, *up.lora) if path.startswith("encoders.b.")]
    assert any(path in up.lora for path in absent)
    for path in absent:
        sent, back = ((m.w | m.lora)[path] for m in (down, up))
        assert torch.equal(sent, back), path

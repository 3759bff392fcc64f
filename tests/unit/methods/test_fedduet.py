"""FedDUET: uncertainty as temperature, a private head that touches nothing shared, smoothed
encoders. Checks of the specification's section 9 by number."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import Batch, CommunisError, FedAvg, Fleet, Model
from communis.core.contract import Client, modality_of
from communis.core.tasks import Classification, Localisation
from communis.methods.fedduet import FedDUET
from communis.models.zoo import Architecture, architecture
from tests.unit.methods.tiny import (
    THREE,
    Values,
    apart,
    batches,
    descend,
    fill,
    fleet,
    mixed,
    move,
    near,
    owned,
    paths,
    play,
    ran,
    same,
    slopes,
    starting,
    told,
    values,
)

ATTENTION = Architecture(width=4, fusion="attention", hidden=(6, 5))
PRESENT = {  # of the 12 windows of `THREE`
    "a": np.array([1, 0, 1, 1, 1, 1, 0, 1, 1, 0, 1, 1], bool),
    "b": np.array([1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 0, 1], bool),
}


def gappy(**changes: Any) -> Fleet:
    """Both modalities, only `a`, only `b`; 4, 6 and 2 windows of which some lack a modality."""
    return mixed(**({"models": (ATTENTION,), "present": PRESENT} | changes))


def is_private(path: str) -> bool:
    return path.startswith("private.")


def written_out(model: Model, batch: Batch, modalities: int) -> tuple[Tensor, Tensor]:
    """L_G and L_P of the paper, window by window; eps = 1e-6."""
    output = model(batch)
    L_G = F.cross_entropy(output.prediction, batch.target)
    precision = torch.zeros(len(batch))
    for m, h in output.features.items():
        said = model.unimodal[m](h)
        z, sigma = said[:, :-1], (said[:, -1] / 2).exp()
        there = [i for i in range(len(batch)) if batch.present[m][i]]
        terms = [F.cross_entropy((z[i] / sigma[i])[None], batch.target[i : i + 1]) for i in there]
        if terms:
            L_G = L_G + torch.stack(terms).mean() / modalities
        for i in there:
            precision[i] += 1 / (sigma[i].item() ** 2 + 1e-6)
    sigma_f = precision**-0.5
    z_P = model.private["head"](output.embedding.detach())
    return L_G, F.cross_entropy(z_P / sigma_f[:, None], batch.target)


def two_steps(
    model: Model, parts: list[Batch], lr: float, private_rate: float = 1.0, clip: float = math.inf
) -> Values:
    """Algorithm 1, lines 11 to 18: the shared part descends L_G, the private head L_P; at a rate of
    its own and with a gradient of norm `clip` at most if asked for."""

    def slope(model: Model, batch: Batch) -> Values:
        L_G, L_P = written_out(model, batch, modalities=2)
        own = {k: g for k, g in slopes(model, L_P).items() if is_private(k)}
        length = math.sqrt(sum(float(g.double().square().sum()) for g in own.values()))
        factor = private_rate * min(1.0, clip / length)
        own = {k: factor * g for k, g in own.items()}
        return {**slopes(model, L_G), **own}

    return descend(model, parts, lr, slope)


def test_two_rounds_by_hand() -> None:
    """Local training and lines 24 to 29 of the algorithm, weights and r_m written out."""
    lr, n, n_m = 0.3, (4, 4, 1), {"a": (3, 4, 0), "b": (3, 0, 1)}
    game = play(gappy(), FedDUET(lr=lr, batch=2), rounds=2)
    assert [card.samples for card in game.bound.cards] == list(n)  # unseen windows are left out
    start = game.bound.params
    shared = {k: t for k, t in start.items() if not is_private(k)}
    own = {i: {k: t for k, t in start.items() if is_private(k)} for i in range(3)}
    for round in (1, 2):
        ends = {}
        for i in range(3):
            client, model = starting(game, i, round)
            fill(model, {k: t for k, t in (shared | own[i]).items() if k in client.card.params})
            ends[i] = two_steps(model, batches(client, 2), lr)
            own[i] = {k: ends[i][k] for k in own[i]}
        new = {}
        for k, old in shared.items():
            m = modality_of(k)
            weight = n_m[m] if m else n
            holders = [i for i in range(3) if k in ends[i]]
            mean = sum(weight[i] * ends[i][k] for i in holders) / sum(weight[i] for i in holders)
            r = sum(n[i] for i in holders) / sum(n) if m else 1.0
            new[k] = (1 - r) * old + r * mean
        shared = new
    assert near(game.server.w, shared, atol=1e-5)
    assert all(near(game.states[i], own[i], atol=1e-5) for i in range(3))
    assert apart(shared, start) > 0.01
    assert apart(own[0], own[1]) > 0.001


@pytest.mark.parametrize(("private_lr", "clip"), [(0.06, 0.0), (0.0, 0.05), (0.06, 0.05)])
def test_the_private_head_has_a_rate_and_a_clip_of_its_own(private_lr: float, clip: float) -> None:
    """By hand; what is shared is what it is without them, bit for bit."""
    lr = 0.3
    settings: dict[str, Any] = {"lr": lr, "batch": 2, "private_lr": private_lr}
    settings |= {"clip": clip, "clip_modules": ("private.",)} if clip else {}
    game = play(gappy(), FedDUET(**settings))
    plain = play(gappy(), FedDUET(lr=lr, batch=2))
    assert same(game.server.w, plain.server.w)
    start = game.bound.params
    for i in range(3):
        client, model = starting(game, i, 1)
        fill(model, {k: start[k] for k in client.card.params})
        rate = private_lr / lr if private_lr else 1.0
        ends = two_steps(model, batches(client, 2), lr, rate, clip or math.inf)
        own = {k: t for k, t in ends.items() if is_private(k)}
        assert near(game.states[i], own, atol=1e-5)
        assert apart(game.states[i], plain.states[i]) > 1e-4


def test_a_private_rate_where_nothing_is_private_is_refused() -> None:
    for method in (FedAvg(private_lr=0.1), FedDUET(dt=False, private_lr=0.1)):
        with pytest.raises(CommunisError, match="shares all parameters"):
            play(gappy(), method, rounds=0)
    with pytest.raises(CommunisError, match="private_lr must be finite"):
        FedDUET(private_lr=-0.1)


def test_without_dt_by_equation_5() -> None:
    """CE(z_G / sigma_f, y) + 1/M sum_m L_UT,m, nothing detached; predictions are tempered too."""
    lr = 0.3
    method = FedDUET(dt=False, shared_temperature=True, lr=lr, batch=2)
    game = play(gappy(), method)

    def tempered(model: Model, batch: Batch) -> Tensor:
        output, precision = model(batch), torch.zeros(len(batch))
        L = torch.zeros(())
        for m, h in output.features.items():
            said = model.unimodal[m](h)
            z, s = said[:, :-1], said[:, -1]
            there = batch.present[m]
            if there.any():
                each = F.cross_entropy(z / (s / 2).exp()[:, None], batch.target, reduction="none")
                L = L + each[there].mean() / 2
            precision = precision + torch.where(there, 1 / (s.exp() + 1e-6), 0.0)
        z_G = output.prediction * precision.sqrt()[:, None]
        return L + F.cross_entropy(z_G, batch.target)

    for i in range(3):
        client, model = starting(game, i, 1)
        fill(model, {k: game.bound.params[k] for k in client.card.params})

        def slope(model: Model, batch: Batch) -> Values:
            return slopes(model, tempered(model, batch))

        assert near(game.ups[0][i].w, descend(model, batches(client, 2), lr, slope), atol=1e-5)
    plain = play(gappy(), FedDUET(dt=False, lr=lr, batch=2))
    assert apart(game.server.w, plain.server.w) > 1e-3
    client, state, _ = game.receive(0, 2)
    said = told(method, client, state, client.train.batch(torch.arange(4)))
    assert torch.allclose(said[""], said["shared"] / said["sigma_f"][:, None])


def test_1_each_loss_moves_its_own_parameters_only() -> None:
    """Exactly: no gradient at all, or zero, on the other side."""
    method = FedDUET(penalty=0.1)
    client, model = a_client(method)
    batch = client.train.batch(torch.arange(4))
    for part in ("shared", "private"):
        model.zero_grad()
        output = model(batch)
        L_G, sigma_f = method.shared_loss(client, output, batch)
        assert sigma_f.requires_grad  # so that detaching it is what keeps the private loss away
        loss = L_G if part == "shared" else method.private_loss(client, output, batch, sigma_f)
        loss.backward()  # type: ignore[no-untyped-call]
        for path, p in model.named_parameters():
            moves = p.grad is not None and bool(p.grad.any())
            if is_private(path) == (part == "shared"):
                assert not moves, path
            elif path.endswith("out.bias") and "encoders" not in path:
                assert moves, path


def a_client(method: FedDUET, round: int = 1, **changes: Any) -> tuple[Client, Model]:
    """The client with both modalities, its model filled with initial values."""
    game = play(gappy(**changes), method, rounds=0)
    client, _, _ = game.receive(0, round)
    return client, client.model


def test_the_private_head_leaves_no_trace_in_the_uplink() -> None:
    method = FedDUET(lr=0.3, batch=2, momentum=0.9)
    game = play(gappy(), method, rounds=0)
    ups = []
    for scale in (1.0, -7.0):
        client, state, down = game.receive(0, 1)
        state = state * scale
        method.adopt(client, state, down)
        ups.append(method.local(client, state, down)[1].w)
    assert same(*ups)


def test_4_what_an_absent_sensor_holds_changes_nothing() -> None:
    """h_f, z_G, z_P and sigma_f keep their bits."""
    method = FedDUET()
    client, model = a_client(method)
    model.eval()
    batch = client.train.batch(torch.arange(4))
    absent = ~batch.present["a"]
    assert absent.any()
    other = torch.where(absent[:, None, None], 1e3, batch.inputs["a"])
    changed = Batch({**batch.inputs, "a": other}, batch.present, batch.target)
    state = method.keep(client)
    with torch.no_grad():
        assert torch.equal(model(batch).embedding, model(changed).embedding)
        first, second = (told(method, client, state, b) for b in (batch, changed))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("ema", ["none", "coverage", "const"])
def test_7_both_parts_off_is_fedavg(ema: str) -> None:
    """Bit for bit, over rounds, with momentum and decay, windows that lack modalities, and the
    same smoothing."""
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "momentum": 0.9, "weight_decay": 0.01}
    settings |= {"ema": ema, "epochs": 2, "r": 0.6}
    duet = play(gappy(), FedDUET(ut=False, dt=False, **settings), rounds=3)
    plain = play(gappy(), FedAvg(**settings), rounds=3)
    assert same(duet.server.w, plain.server.w)
    assert apart(duet.server.w, play(gappy(), FedDUET(**settings), rounds=3).server.w) > 1e-3


def test_8_coverage_is_fedavg_whose_others_return_what_they_got() -> None:
    """Where every window has every sensor its client owns."""
    game = play(gappy(present={}), FedDUET(lr=0.3), rounds=2)
    before, total = game.downs[1][0].w, 12
    assert sum(card.samples for card in game.bound.cards) == total
    received = {path: t for down in game.downs[1].values() for path, t in down.w.items()}
    expected = {}
    for path, old in received.items():
        ends = [game.ups[1][i].w.get(path, old) for i in range(3)]
        parts = [c.samples * end for c, end in zip(game.bound.cards, ends, strict=True)]
        expected[path] = sum(parts) / total
    assert near(game.server.w, expected)
    assert apart(game.server.w, before) > 1e-3


def test_encoders_that_all_have_move_all_the_way() -> None:
    """With one suite for all, coverage is 1: the mean itself, bit for bit."""
    duet = play(fleet(models=(ATTENTION,)), FedDUET(ut=False, dt=False, lr=0.3), rounds=3)
    assert same(duet.server.w, play(fleet(models=(ATTENTION,)), FedAvg(lr=0.3), rounds=3).server.w)


def test_only_encoders_and_uncertainty_heads_are_smoothed() -> None:
    """Half of the way with r = 0.5; fusion and shared head go all the way to the mean by n_k."""
    game = play(gappy(), FedDUET(lr=0.3, ema="const", r=0.5))
    cards, ups, old = game.bound.cards, game.ups[0], game.bound.params
    for path, new in game.server.w.items():
        m = modality_of(path)
        weight = {i: cards[i].samples_by_modality[m] if m else cards[i].samples for i in ups
                  if path in ups[i].w}  # fmt: skip
        mean = sum(n * ups[i].w[path] for i, n in weight.items()) / sum(weight.values())
        expected = (old[path] + mean) / 2 if m else mean
        assert torch.allclose(new, expected, atol=1e-6), path


def test_without_smoothing_encoders_are_weighted_by_all_windows() -> None:
    game = play(gappy(), FedDUET(lr=0.3, ema="none"))
    cards, ups = game.bound.cards, game.ups[0]
    path = "encoders.a.conv1.weight"
    mean = (cards[0].samples * ups[0].w[path] + cards[1].samples * ups[1].w[path]) / 8
    assert [cards[i].samples for i in (0, 1)] == [4, 4]
    assert cards[0].samples_by_modality["a"] == 3  # so that the weights could differ
    assert torch.allclose(game.server.w[path], mean, atol=1e-6)


def test_a_modality_that_the_cohort_lacks_stays() -> None:
    game = play(gappy(), FedDUET(lr=0.3), cohorts=[[0, 1, 2], [1]])
    before, after = play(gappy(), FedDUET(lr=0.3)).server.w, game.server.w
    for path in [p for p in after if modality_of(p)]:
        assert torch.equal(before[path], after[path]) == (modality_of(path) == "b"), path


def test_a_sensor_that_was_never_there_in_training_has_no_weight() -> None:
    """Client 0 owns `a` but no window has it: the encoder comes from client 1 alone."""
    nothing = {"a": np.array([0] * 4 + [1] * 8, bool), "b": np.ones(12, bool)}
    game = play(gappy(present=nothing), FedDUET(lr=0.3, ema="const", r=1.0, weight_decay=0.1))
    for path, value in game.ups[0][1].w.items():
        if modality_of(path) == "a":
            assert torch.equal(game.server.w[path], value)
            assert not torch.equal(game.ups[0][0].w[path], value)


def test_9_bytes_are_those_of_the_formula_and_the_private_head_stays() -> None:
    """4 [sum over owned m of (|E_m| + |U_m|) + |Fusion| + |G|], layer by layer."""
    run = ran(gappy(), FedDUET())

    def dense(*sizes: int) -> int:
        return sum(a * b + b for a, b in pairwise(sizes))

    E = (5 * 2 * 4 + 4) + (5 * 4 * 8 + 8)
    U = dense(8, 64, 32, 3 + 1)
    fusion = dense(8, 128) + dense(128, 4)
    G = dense(32, 6, 5, 3)
    assert run.history[0].bytes_up == 4 * (4 * (E + U) + 3 * (fusion + G))
    assert run.history[0].bytes_down == run.history[0].bytes_up
    assert run.history[0].bytes_up == 4 * owned(run, lambda path: not is_private(path))
    assert not any(map(is_private, paths(run.server)))
    assert sum(math.prod(s) for p, s in run.cards[0].params.items() if is_private(p)) == G


def test_the_papers_model_has_the_specs_size() -> None:
    """PAMAP2, six modalities, twelve classes: 743,518 parameters travel, 133,004 stay."""
    shapes = {f"m{i}": (3, 200) for i in range(6)}
    model = architecture("tpn").build(shapes, 12)
    FedDUET().equip(model, Classification(12))
    sizes = {path: p.numel() for path, p in model.named_parameters()}
    private = sum(n for path, n in sizes.items() if is_private(path))
    assert private == 133_004
    assert 4 * (sum(sizes.values()) - private) == 2_974_072


def test_10_a_batch_without_any_sensor_is_no_nan() -> None:
    method = FedDUET(penalty=0.1)
    client, model = a_client(method)
    batch = client.train.batch(torch.arange(4))
    none = Batch(
        batch.inputs, {m: torch.zeros_like(p) for m, p in batch.present.items()}, batch.target
    )
    model.zero_grad()
    output = model(none)
    L_G, sigma_f = method.shared_loss(client, output, none)
    (L_G + method.private_loss(client, output, none, sigma_f)).backward()  # type: ignore[no-untyped-call]
    assert sigma_f.tolist() == pytest.approx([math.e**2] * 4, rel=1e-6)
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
    views = told(method, client, method.keep(client), none)
    assert all(bool(v.isfinite().all()) for v in views.values())


def test_predictions_add_logits_literally_or_at_the_trained_temperature() -> None:
    game = play(gappy(held_out=3, present={}), FedDUET(lr=0.3), rounds=2)
    client, state, _ = game.receive(0, 3)
    batch = client.test.batch(torch.arange(3))
    with torch.no_grad():
        output = client.model(batch)
        said = told(game.method, client, state, batch)
        z_P = client.model.private["head"](output.embedding)
        tempered = FedDUET(ensemble="tempered").predict(client, state, batch).scored
        assert torch.equal(
            game.method.predict(client, state, batch).scored, output.prediction + z_P
        )
    assert torch.allclose(tempered, output.prediction + z_P / said["sigma_f"][:, None])
    assert set(said) == {
        *("", "shared", "private", "sigma_f", "clamped", "tempered", "private_tempered")
    }
    other = told(FedDUET(ensemble="tempered"), client, state, batch)
    assert set(other) == set(said) - {"tempered"} | {"literal"}
    assert torch.equal(other["literal"], said[""])
    assert torch.equal(said["tempered"], tempered)
    assert torch.allclose(said["private_tempered"], z_P / said["sigma_f"][:, None])
    assert not said["clamped"].any()
    assert torch.equal(said["shared"], output.prediction)
    assert torch.equal(said["private"], z_P)
    assert not torch.allclose(said["sigma_f"], torch.full((3,), 2**-0.5))  # it has been learned


@pytest.mark.parametrize(
    ("settings", "modules"),
    [
        ({"ut": False}, {"private"}),
        ({"dt": False}, {"unimodal"}),
        ({"ut": False, "dt": False}, set()),
    ],
)
def test_a_part_that_is_off_adds_nothing(settings: dict[str, bool], modules: set[str]) -> None:
    game = play(gappy(held_out=2, present={}), FedDUET(**settings), rounds=1)
    there = {path.partition(".")[0] for path in game.bound.params}
    assert there == {"encoders", "fusion", "head"} | modules
    client, state, _ = game.receive(0, 2)
    batch = client.test.batch(torch.arange(2))
    views = told(game.method, client, state, batch)
    assert ("sigma_f" in views) == ("unimodal" in modules)
    assert ("private" in views) == ("private" in modules)
    if not game.method.dt:
        assert torch.equal(
            game.method.predict(client, state, batch).scored, client.model(batch).prediction
        )


def test_without_ut_the_private_head_learns_at_temperature_one() -> None:
    lr = 0.3
    game = play(gappy(), FedDUET(ut=False, lr=lr))
    client, model = starting(game, 0)
    for part in batches(client):
        output = model(part)
        L_G = F.cross_entropy(output.prediction, part.target)
        z_P = model.private["head"](output.embedding.detach())
        move(model, slopes(model, L_G + F.cross_entropy(z_P, part.target)), lr)
    assert near(game.models[0], values(model))


def test_the_penalty_holds_s_near_zero() -> None:
    """The log-variance of a trained head shrinks when it costs."""

    def spread(penalty: float) -> float:
        game = play(gappy(), FedDUET(lr=0.3, batch=2, penalty=penalty), rounds=8)
        client, _, _ = game.receive(0, 9)
        with torch.no_grad():
            features = client.model(client.train.batch(torch.arange(4))).features
            return max(
                float(client.model.unimodal[m](h)[:, -1].abs().max()) for m, h in features.items()
            )

    assert spread(1.0) < spread(0.0) / 2


def test_rescaled_the_private_gradient_is_that_of_probabilities() -> None:
    """dL_P/dz_P = (softmax(z_P / sigma_f) - y) / B; without it 1 / sigma_f times as much."""
    client, model = a_client(FedDUET())
    batch = client.train.batch(torch.arange(4))
    output, sigma_f = model(batch), torch.tensor([0.1, 0.5, 1.0, 3.0])
    z_P = model.private["head"](output.embedding.detach())
    error = (z_P / sigma_f[:, None]).softmax(1) - F.one_hot(batch.target, 3)
    head = model.private["head"]
    for method, scale in ((FedDUET(rescale=True), torch.ones(4)), (FedDUET(), 1 / sigma_f)):
        loss = method.private_loss(client, output, batch, sigma_f)
        (slope,) = torch.autograd.grad(loss, [head.out.bias])  # type: ignore[union-attr, list-item]
        assert torch.allclose(slope, (scale[:, None] * error).mean(0), atol=1e-6)


def test_fewer_sensors_mean_more_uncertainty() -> None:
    game = play(gappy(), FedDUET(lr=0.1), rounds=3)
    client, state, _ = game.receive(0, 4)
    batch = client.train.batch(torch.arange(4))
    both = {m: torch.ones(4, dtype=torch.bool) for m in batch.present}
    one = {**both, "a": torch.zeros(4, dtype=torch.bool)}
    with torch.no_grad():
        more, fewer = (
            told(game.method, client, state, Batch(batch.inputs, p, batch.target))["sigma_f"]
            for p in (both, one)
        )
    assert bool((fewer > more).all())


def test_private_state_waits_with_its_client() -> None:
    game = play(gappy(), FedDUET(lr=0.3), cohorts=[[0, 1, 2], [0, 1]])
    once = play(gappy(), FedDUET(lr=0.3))
    assert same(game.states[2], once.states[2])
    assert not same(game.states[1], once.states[1])


def test_a_private_head_without_local_data_is_refused() -> None:
    """Named, with what mends it; without the private head the same fleet runs."""
    nothing = {m: np.concatenate([flags[:10], [False, False]]) for m, flags in PRESENT.items()}
    with pytest.raises(CommunisError, match=r"client 2 has none.*set its dt = false"):
        play(gappy(present=nothing), FedDUET())
    play(gappy(present=nothing), FedDUET(dt=False))


def test_a_modality_that_no_client_holds_is_refused() -> None:
    nothing = {"a": np.ones(12, bool), "b": np.zeros(12, bool)}
    broken = fleet(THREE, [("a", "b")] * 3, models=(ATTENTION,), present=nothing)
    with pytest.raises(CommunisError, match="no client has a training window with b"):
        play(broken, FedDUET())
    play(broken, FedDUET(ut=False))


def test_equation_5_on_the_shared_head_needs_ut_and_no_dt() -> None:
    for settings in ({}, {"ut": False, "dt": False}):
        with pytest.raises(CommunisError, match="set dt = false and ut = true"):
            FedDUET(shared_temperature=True, **settings)


def test_other_bad_settings_are_refused() -> None:
    with pytest.raises(CommunisError, match="penalty"):
        FedDUET(penalty=-1.0)
    with pytest.raises(CommunisError, match="ensemble must be one of"):
        FedDUET(ensemble="mean")  # type: ignore[arg-type]
    with pytest.raises(CommunisError, match="r must be in"):
        FedDUET(r=0.0)
    place = np.zeros((12, 2), np.float32)
    with pytest.raises(CommunisError, match="needs a classification or counting task"):
        play(gappy(task=Localisation(2), target=place), FedDUET())


def test_block_fusion_will_do() -> None:
    game = play(mixed(present=PRESENT), FedDUET(lr=0.3), rounds=2)
    assert all(bool(t.isfinite().all()) for t in game.server.w.values())
    assert apart(game.server.w, game.bound.params) > 0.01

"""UMEDA: rounds by hand, what each setting does, and where it is FedAvg."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from communis import Card, CommunisError, FedAvg, Plan, Replies, Run, State
from communis.exchange.privacy.settings import PrivacyConfig
from communis.fleet.attack import Attack
from communis.fleet.clients import FleetClients
from communis.methods.parts.diffusion import operators as ops
from communis.methods.umeda import Server, Umeda, Up
from communis.models.sglt import Sglt
from communis.models.zoo import Architecture
from tests.unit.methods.tiny import TWO, fleet, play

PATH = "fusion.shared.layers.0.operator.theta"
NINE = tuple((0, 1, 2, i % 3) for i in range(9))  # targets of nine clients


def tokens(**settings: Any) -> Architecture:
    made = Sglt(**{"heads": 2, "layers": 1, "operator_std": 0.1, "operator_rank": 3, **settings})
    return Architecture("tokens", fusion="sglt", embedding=8, sglt=made)


def small(targets: Any = TWO, **settings: Any) -> Any:
    return fleet(targets, models=(tokens(**settings),))


def card(id: int, samples: int = 1) -> Card:
    return Card(id, (), {PATH: (4, 4), "head.w": (1,)}, samples, {}, {})


def server(theta: torch.Tensor, rank: int = 2) -> Server:
    state = State({PATH: theta})
    u, v = ops.bases(state, rank)
    return Server(state, u, v, state.zeros(), w=State({"head.w": torch.zeros(1)}))


def up(theta: torch.Tensor, w: float = 0.0) -> Up:
    return Up(State({"head.w": torch.tensor([w])}), {PATH: theta})


def literal(**changes: Any) -> Umeda:
    """Algorithm 1 with nothing added."""
    settings = {"rank": 2, "basis": "theta", "warmup": 0, "residual": "drop", "align": False}
    return Umeda(**{**settings, **changes})  # type: ignore[arg-type]


THETA = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0]))  # its block are the first rows and columns
ONE, OTHER = torch.arange(16.0).view(4, 4), torch.ones(4, 4) * 3


def test_a_round_by_hand() -> None:
    """Clients with 1 and 3 windows moved theta_M by ONE and OTHER, and a head to 8 and 4. The mean
    of the cores is (ONE + 3 OTHER) / 4 in the first two rows and columns and nothing elsewhere."""
    replies = Replies([(card(0, 1), up(THETA + ONE, 8.0)), (card(1, 3), up(THETA + OTHER, 4.0))])
    made = literal(consensus="spectral_mean").aggregate(server(THETA), replies)
    expected = THETA.clone()
    expected[:2, :2] += torch.tensor([[9.0, 10.0], [13.0, 14.0]]) / 4
    torch.testing.assert_close(made.theta[PATH], expected)
    assert made.w["head.w"].tolist() == [5.0]
    inside = sum((m[:2, :2] ** 2).sum() for m in (ONE, OTHER))
    whole = sum((m**2).sum() for m in (ONE, OTHER))
    assert made.captured == pytest.approx(float(inside / whole))
    alike = literal(consensus="spectral_mean", uniform=True).aggregate(server(THETA), replies)
    assert alike.theta[PATH][0, 0] == pytest.approx(4 + 1.5)
    assert alike.w["head.w"].tolist() == [6.0]


def test_the_servers_step_and_the_rest_outside_of_the_block() -> None:
    replies = Replies([(card(0), up(THETA + ONE, 8.0)), (card(1), up(THETA + OTHER, 4.0))])
    mean = (ONE + OTHER) / 2
    for eta in (1.0, 0.5):
        method = literal(consensus="spectral_mean", residual="mean", lr_server=eta)
        made = method.aggregate(server(THETA), replies)
        torch.testing.assert_close(made.theta[PATH], THETA + eta * mean)
        assert made.w["head.w"].tolist() == [6.0 * eta]


def test_few_clients_take_the_mean_and_say_so() -> None:
    replies = Replies([(card(0), up(THETA + ONE)), (card(1), up(THETA + OTHER))])
    found = literal().aggregate(server(THETA), replies)
    mean = literal(consensus="spectral_mean").aggregate(server(THETA), replies)
    torch.testing.assert_close(found.theta[PATH], mean.theta[PATH])
    assert found.fallback
    assert literal().notes(found, -1)["umeda/fallback"] == 1


@pytest.mark.slow
def test_an_outlier_moves_the_mean_but_not_the_median_or_the_kernel() -> None:
    changes = [OTHER + 0.01 * i * ONE for i in range(-4, 5)] + [100 * OTHER]
    replies = Replies([(card(i), up(THETA + c)) for i, c in enumerate(changes)])
    off = {}
    for consensus in ("spectral_mean", "geometric_median", "kernel", "diffusion"):
        made = literal(consensus=consensus).aggregate(server(THETA), replies)
        off[consensus] = float((made.theta[PATH] - THETA - OTHER)[:2, :2].abs().max())
    assert off["spectral_mean"] > 20
    assert off["geometric_median"] < 1
    assert off["kernel"] < 1


def test_warm_up_rounds_are_plain_means() -> None:
    replies = Replies([(card(0), up(THETA + ONE)), (card(1), up(THETA + OTHER))])
    method = Umeda(rank=2, consensus="spectral_mean", residual="drop", warmup=1)
    first = method.aggregate(server(THETA), replies)
    torch.testing.assert_close(first.theta[PATH], THETA + (ONE + OTHER) / 2)
    u, w = ops.bases(State({PATH: (ONE + OTHER) / 2}), 2)  # now the block is that of updates
    torch.testing.assert_close(first.u[PATH] @ first.u[PATH].T, u[PATH] @ u[PATH].T)
    torch.testing.assert_close(first.v[PATH] @ first.v[PATH].T, w[PATH] @ w[PATH].T)
    second = method.aggregate(first, replies)
    assert second.round == 2
    assert not torch.allclose(second.theta[PATH] - first.theta[PATH], first.theta[PATH] - THETA)


def test_the_papers_block_is_frozen() -> None:
    """Whatever clients send, theta_M keeps the span of its own directions."""
    method, now = literal(consensus="spectral_mean"), server(THETA)
    for _ in range(5):
        sent = [(card(i), up(now.theta[PATH] + m)) for i, m in enumerate((ONE, OTHER))]
        now = method.aggregate(now, Replies(sent))
    moved = now.theta[PATH] - THETA
    assert float(moved[2:].abs().max()) == 0
    assert float(moved[:, 2:].abs().max()) == 0


def test_the_moving_average_lets_new_directions_into_the_block() -> None:
    """Even if what is outside of the block is dropped, it is the block of the next round."""
    method = Umeda(rank=2, consensus="spectral_mean", residual="drop", warmup=0)
    new = torch.zeros(4, 4)
    new[2, 3], new[3, 2] = 1.0, 0.5  # nothing of it is in the first block
    now = server(THETA)
    for _ in range(3):
        now = method.aggregate(now, Replies([(card(0), up(now.theta[PATH] + new))]))
    assert now.captured == pytest.approx(1.0)
    torch.testing.assert_close(now.theta[PATH] - THETA, 2 * new)  # all rounds but the first


@pytest.mark.parametrize("operator", ["learned", "ema", "factored", "none"])
def test_everything_off_is_fedavg_bit_for_bit(operator: str) -> None:
    games = [
        play(small(operator=operator), method, rounds=3)
        for method in (FedAvg(batch=2), Umeda(batch=2, consensus="fedavg"))
    ]
    ours = games[1].server.w | games[1].server.theta
    assert sorted(ours) == sorted(games[0].server.w)
    for path, tensor in games[0].server.w.items():
        assert torch.equal(tensor, ours[path]), path


def test_a_block_of_everything_is_fedavg() -> None:
    """r = d: the mean of cores is the mean of theta_M, whatever becomes of the rest."""
    plain = play(small(), FedAvg(batch=2), rounds=3).server.w
    for residual in ("drop", "mean"):
        whole = Umeda(batch=2, rank=8, consensus="spectral_mean", warmup=0, residual=residual)  # type: ignore[arg-type]
        made = play(small(), whole, rounds=3).server
        torch.testing.assert_close(made.theta[PATH], plain[PATH], atol=1e-6, rtol=1e-5)


def test_the_latent_upload_is_the_block_and_nothing_else() -> None:
    settings: dict[str, Any] = {"batch": 2, "rank": 2, "consensus": "spectral_mean", "warmup": 0}
    full = play(small(), Umeda(**settings, residual="drop"))
    latent = play(small(), Umeda(**settings, upload="latent"))
    sent = latent.ups[0][0].operator
    assert {key: tuple(t.shape) for key, t in sent.items()} == {PATH + ".core": (2, 2)}
    torch.testing.assert_close(full.server.theta[PATH], latent.server.theta[PATH])


def test_a_latent_block_stays_and_says_nothing_of_what_it_misses() -> None:
    game = play(small(), Umeda(batch=2, rank=2, upload="latent"), rounds=3)
    assert torch.equal(game.server.u[PATH], game.downs[0][0].u[PATH])
    assert "umeda/captured" not in Umeda().notes(game.server, -1)
    everything = play(small(features=12), Umeda(batch=2, rank=12, upload="latent"), rounds=1)
    assert tuple(everything.ups[0][0].operator[PATH + ".core"].shape) == (12, 8)
    own = everything.bound.cards[0]
    everything.ups[0][0].check(own, Umeda(rank=12, upload="latent"))


def test_only_the_factors_core_travels() -> None:
    game = play(small(operator="factored"), Umeda(batch=2), rounds=4)
    assert {tuple(up.operator[PATH].shape) for up in game.ups[0].values()} == {(3, 3)}
    assert game.server.captured == pytest.approx(1.0)


def test_top_r_average_leaves_the_rest_with_its_client() -> None:
    method = Umeda(batch=2, rank=2, consensus="topr_average", warmup=1)
    game = play(small(), method, rounds=1)
    assert not game.states[0].rest  # a warm-up round has no block
    game.round()
    (u, v), rest = (game.downs[1][0].u[PATH], game.downs[1][0].v[PATH]), game.states[0].rest[PATH]
    torch.testing.assert_close(u.T @ rest @ v, torch.zeros(2, 2), atol=1e-6, rtol=0)
    assert float(rest.norm()) > 0
    sent = game.ups[1][0].operator[PATH] - game.downs[1][0].operator[PATH]
    torch.testing.assert_close(u @ (u.T @ sent @ v) @ v.T, sent, atol=1e-6, rtol=0)  # block only
    client, _, down = game.receive(0, 3)
    torch.testing.assert_close(client.model.by_path[0][PATH].data, down.operator[PATH] + rest)


@pytest.mark.slow
def test_psi_is_carried_on_whether_or_not_bases_are_turned() -> None:
    """Algorithm 1 keeps it, in whatever coordinates; score_keep = 0 does not."""
    for align in (True, False):
        settings: dict[str, Any] = {"batch": 2, "rank": 2, "warmup": 0, "align": align}
        training: dict[str, Any] = {"score_steps": 1, "score_steps_warm": 0, "score_width": 8}
        kept = play(small(NINE), Umeda(**settings, **training), rounds=2)
        first = play(small(NINE), Umeda(**settings, **training), rounds=1)
        for path, tensor in kept.server.psi.items():
            torch.testing.assert_close(tensor, 0.5 * first.server.psi[path])
        anew = play(small(NINE), Umeda(**settings, **training, score_keep=0.0), rounds=2)
        drawn = anew.server.psi["0.weight"]
        assert not torch.allclose(drawn, 0.5 * first.server.psi["0.weight"])


def test_what_became_of_the_consensus_is_written_down() -> None:
    """Taken or not, and how far it lay, in radii of the clients' cloud."""
    points = [OTHER + 0.01 * i * ONE for i in range(-4, 5)]
    replies = Replies([(card(i), up(THETA + c)) for i, c in enumerate(points)])
    taken = literal(consensus="kernel")
    notes = taken.notes(taken.aggregate(server(THETA), replies), -1)
    assert (notes["umeda/used"], notes["umeda/fallback"], notes["umeda/not_finite"]) == (1, 0, 0)
    assert 0 <= notes["umeda/distance"] < 1
    sample: dict[str, Any] = {"sampler": "sample_mean", "samples": 1, "score_output": "raw"}
    sample |= {"score_steps": 5, "score_width": 8}
    for trust, used in ((0.0, 1), (1.0, 0)):  # hardly trained: a sample far away
        method = literal(trust_region=trust, **sample)
        made = method.aggregate(server(THETA), replies)
        notes = method.notes(made, -1)
        assert notes["umeda/distance"] > 10
        assert (notes["umeda/used"], notes["umeda/fallback"]) == (used, 1 - used)
        assert (float((made.theta[PATH] - THETA).norm()) > 100) == bool(used)


def test_a_warm_up_round_has_no_consensus() -> None:
    replies = Replies([(card(0), up(THETA + ONE)), (card(1), up(THETA + OTHER))])
    method = Umeda(rank=2, warmup=1)
    notes = method.notes(method.aggregate(server(THETA), replies), -1)
    assert (notes["umeda/used"], notes["umeda/fallback"]) == (0, 0)
    assert "umeda/distance" not in notes


def test_a_model_without_operator_is_fedavg() -> None:
    plain = play(fleet(), FedAvg(batch=2), rounds=2).server.w
    ours = play(fleet(), Umeda(batch=2), rounds=2).server
    assert all(torch.equal(t, ours.w[path]) for path, t in plain.items())
    assert Umeda().notes(ours, -1) == {}


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ({}, "operator holds {}"),
        ({PATH: torch.zeros(2, 2)}, r"expected .*\(4, 4\)"),
        ({PATH + ".core": torch.zeros(4, 4)}, "operator holds"),
        ({PATH: torch.zeros(4, 4, dtype=torch.float64)}, "expected torch.float32"),
    ],
)
def test_messages_that_cannot_be_true(sent: dict[str, torch.Tensor], text: str) -> None:
    with pytest.raises(CommunisError, match=text):
        Up(State(), sent).check(card(0), Umeda())


@pytest.mark.parametrize(
    "settings",
    [
        {"rank": 0},
        {"warmup": -1},
        {"beta": 1.0},
        {"lr_server": 0.0},
        {"consensus": "vote"},
        {"sampler": "paper"},
        {"samples": 0},
        {"sigma_min": 60.0},
        {"trust_region": -1.0},
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(CommunisError):
        Umeda(**settings)
    with pytest.raises(CommunisError, match="has no block"):
        Umeda(consensus="fedavg", upload="latent")


def ran(method: Umeda, **options: Any) -> Run:
    plan = Plan(rounds=2, workers=1, eval_every=0)
    with Run(small(NINE), method, plan, **options) as run:
        list(run)
    return run


def test_the_papers_privacy_noises_the_operator_alone() -> None:
    privacy = PrivacyConfig(mode="paper", epsilon=2.0)
    clear = ran(literal(batch=2, consensus="spectral_mean"))
    noised = ran(literal(batch=2, consensus="spectral_mean"), privacy=privacy)
    assert not torch.allclose(clear.server.theta[PATH], noised.server.theta[PATH], atol=0.1)
    rows = (noised.folder.path / "privacy.json").read_text("utf-8")
    assert rows.count("covers the operator only") > 3
    assert rows.count('"covered": true') == 1


def moved_by_kappa(method: Umeda, **model: Any) -> float:
    """How far theta_M after three noised rounds at kappa = 4 is from that at kappa = 1, with the
    same draws of noise, as a share of what the rounds changed."""
    thetas = []
    for kappa in (1.0, 4.0):
        privacy = PrivacyConfig(mode="paper", epsilon=2.0, kappa=kappa)
        plan = Plan(rounds=3, workers=1, eval_every=0)
        with Run(small(NINE, **model), method, plan, privacy=privacy) as run:
            start = run.server.theta[PATH]
            list(run)
        thetas.append(run.server.theta[PATH])
    return float((thetas[1] - thetas[0]).norm() / (thetas[0] - start).norm())


@pytest.mark.slow
@pytest.mark.parametrize("consensus", ["spectral_mean", "kernel"])
def test_kappa_makes_no_difference_behind_a_block_that_noise_does_not_choose(
    consensus: Any,
) -> None:
    """The server sees cores only, and kappa is about what is outside of the block. theta_M's own
    directions stay in the span of the first ones. Messages are in single precision."""
    method = Umeda(batch=2, rank=2, consensus=consensus)
    assert moved_by_kappa(method) < 1e-4  # by default
    assert moved_by_kappa(replace(method, basis="fixed", residual="drop")) < 1e-4
    own = replace(method, basis="theta", residual="drop", warmup=0, align=False)
    assert moved_by_kappa(own) < 1e-4
    assert moved_by_kappa(replace(method, rank=3), operator="factored") == 0


def test_kappa_chooses_a_block_that_follows_noised_updates() -> None:
    """A moving average of whole noised updates points where the noise does."""
    method = Umeda(batch=2, rank=2, consensus="spectral_mean", residual="drop", warmup=0)
    assert moved_by_kappa(replace(method, basis="momentum")) > 0.3


@pytest.mark.slow
def test_a_block_is_fixed_by_default_where_clients_noise_what_they_send() -> None:
    """And there is no warm-up, nor is the mean of what is outside of it added."""
    clear = ran(Umeda(batch=2, rank=2))
    assert not clear.server.noised
    noised = ran(Umeda(batch=2, rank=2), privacy=PrivacyConfig(mode="paper", epsilon=2.0))
    assert noised.server.noised
    first = noised.method.start_server(FleetClients(small(NINE), noised.method))
    u, v = first.u[PATH], first.v[PATH]
    assert torch.equal(noised.server.u[PATH], u)
    assert not torch.allclose(clear.server.u[PATH], u)
    step = noised.server.theta[PATH] - first.theta[PATH]
    inside = u @ (u.T @ step @ v) @ v.T
    assert float(step.norm()) > 1  # noise
    assert float((step - inside).norm() / step.norm()) < 1e-5
    assert noised.server.used  # the second of two rounds: nothing was warm-up
    assert not clear.server.used


def test_umeda_has_no_sums_for_a_trusted_server() -> None:
    with pytest.raises(CommunisError, match="central releases noised sums only"):
        ran(Umeda(batch=2, uniform=True), privacy=PrivacyConfig(mode="central", noise=1.0))
    with pytest.raises(CommunisError, match="has no subspace"):
        ran(Umeda(batch=2, upload="latent"), privacy=PrivacyConfig(mode="paper", epsilon=2.0))


def test_the_papers_privacy_needs_an_operator_to_noise() -> None:
    for operator, kappa in (("none", 1.0), ("none", 4.0)):
        privacy = PrivacyConfig(mode="paper", epsilon=2.0, kappa=kappa)
        with pytest.raises(
            CommunisError, match="noises theta_M, which this fleet's models do not have"
        ):
            Run(small(NINE, operator=operator), Umeda(batch=2), Plan(workers=1), privacy=privacy)


def test_a_liar_is_measured_on_the_whole_model() -> None:
    lying = replace(small(NINE), attack=Attack("sign_flip", (0,)))
    with Run(lying, Umeda(batch=2), Plan(rounds=1, workers=1, eval_every=0)) as run:
        (record,) = list(run)
    assert record.attack_distance > 0

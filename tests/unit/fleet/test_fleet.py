"""Fleet: cards, rows, normalisation, absent values, the pool, the cache."""

from __future__ import annotations

import pickle
import weakref
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from communis import CommunisError, FedAvg, Fleet, Model, State, Task, Windows
from communis.core.samples import TensorSamples
from communis.core.tasks import Classification, Localisation
from communis.fleet import clients as fleet_module
from communis.fleet.attack import Attack
from communis.fleet.clients import FleetClients
from communis.fleet.public import public_client
from communis.methods.centralized import Centralized
from communis.methods.fedrod import FedRoD
from communis.models.zoo import ZOO, Architecture
from tests.unit.small import TINY, TINY_NORM, bound, same_bits, windows

SPLIT = (0, 0, 0, 1, 2, 0, 0, 2, 0, 2)
OWNER = (5, 5, 5, 5, 5, 6, 6, 6, 9, 9)  # clients 0, 1, 2
SUITES = [("a", "b"), ("a",), ("b",)]


def three(**changes: Any) -> Windows:
    """Three clients with 3, 2 and 1 training windows."""
    return windows(SPLIT, OWNER, **changes)


def original(data: Windows, modality: str, rows: list[int]) -> Tensor:
    """(n, steps, channels), as samples are stored."""
    return torch.from_numpy(np.moveaxis(data.inputs[modality][rows], 1, -1).copy())


def test_cards_tell_samples_sensors_shapes_and_sizes() -> None:
    present = {"a": np.array([1, 0, 1, 0, 1, 0, 0, 1, 1, 1], bool)}
    cards = bound(three(present=present), suites=SUITES).cards
    assert [card.id for card in cards] == [0, 1, 2]
    assert [card.modalities for card in cards] == SUITES
    # `a` is absent from one training window of client 0 and from both of client 1, which has
    # no other sensor
    assert [card.samples for card in cards] == [3, 0, 1]
    assert [dict(card.samples_by_modality) for card in cards] == [
        {"a": 2, "b": 3},
        {"a": 0},
        {"b": 1},
    ]
    assert cards[0].sizes == {
        "classes": 3,
        "outputs": 3,
        "embedding": 6,
        "modalities": 2,
        "features": 8,
    }
    assert cards[0].params["encoders.a.conv1.weight"] == (5, 2, 4)
    assert cards[0].params["fusion.blocks.b.weight"] == (6, 8)
    assert cards[0].params["head.out.bias"] == (3,)
    assert not any(".b." in path for path in cards[1].params)
    assert not any(".a." in path for path in cards[2].params)
    assert cards[0].model == repr(TINY)
    assert bound(three(), models=("gru",)).cards[0].model == "gru"


def test_cards_list_no_buffers_but_the_modules_of_the_method() -> None:
    cards = bound(three(), FedRoD(), models=(TINY_NORM,)).cards
    assert not any("running" in path for path in cards[0].params)
    assert cards[0].params["private.head.out.weight"] == (3, 6)


def test_a_client_gets_its_rows_and_splits() -> None:
    data = three()
    fleet = bound(data, normalise="none", suites=SUITES)
    one = fleet.client(1, 4)
    assert (len(one.train), len(one.val), len(one.test)) == (2, 0, 1)
    assert same_bits(one.train.inputs["a"], original(data, "a", [5, 6]))
    assert same_bits(one.test.inputs["a"], original(data, "a", [7]))
    assert list(one.train.inputs) == ["a"]
    assert one.train.target.tolist() == data.target[[5, 6]].tolist()
    assert (one.round, one.card.id) == (4, 1)


def test_batches_are_channels_first_and_in_the_order_asked_for() -> None:
    data = three()
    one = bound(data, normalise="none").client(0, 1)
    batch = one.train.batch(torch.tensor([2, 0, 2]))
    assert batch.inputs["a"].shape == (3, 2, 12)
    assert np.array_equal(batch.inputs["a"], data.inputs["a"][[2, 0, 2]])
    assert batch.target.tolist() == data.target[[2, 0, 2]].tolist()
    assert batch.present["b"].tolist() == [True] * 3
    assert len(batch) == 3


def test_rows_of_scattered_clients_keep_their_order() -> None:
    client_of = np.array([2, 0, 1, 0, -1, 2, 1, 0, -1, 2])
    data = three()
    fleet = Fleet(data, [("a", "b")] * 4, (TINY,), client_of, normalise="none")
    assert [np.asarray(fleet.rows(i)).tolist() for i in range(4)] == [
        [1, 3, 7],
        [2, 6],
        [0, 5, 9],
        [],
    ]
    at_work = FleetClients(fleet, FedAvg())
    train = at_work.client(2, 1).train
    assert same_bits(train.inputs["b"], original(data, "b", [0, 5]))  # row 9 tests
    assert [card.samples for card in at_work.cards] == [1, 2, 2, 0]
    assert [len(at_work.client(3, 1).train), len(at_work.client(3, 1).test)] == [0, 0]
    assert at_work.trainers == (0, 1, 2)


def test_clients_that_lie_together_are_read_as_one_slice() -> None:
    """A slice of a memory map is not copied; windows that are nobody's may lie in front."""
    client_of = np.array([-1, -1, 0, 0, 0, 2, 2, 2, 2, 2])
    fleet = Fleet(three(), [("a", "b")] * 3, (TINY,), client_of)
    rows = [fleet.rows(i) for i in range(3)]
    assert [found.tolist() for found in rows] == [[2, 3, 4], [], [5, 6, 7, 8, 9]]
    assert all(
        np.shares_memory(fleet._sensed("a", r, None), fleet.windows.inputs["a"]) for r in rows[::2]
    )


def test_windows_of_nobody_are_seen_by_nobody() -> None:
    data = three()
    data.inputs["a"][[0, 4]] = 1e6
    client_of = np.array([-1, 0, 0, 0, -1, 1, 1, 1, 1, 1])
    fleet = Fleet(data, [("a", "b")] * 2, (TINY,), client_of)
    at_work = FleetClients(fleet.pool(), Centralized())
    assert [card.samples for card in at_work.cards] == [2, 3, 5]
    for i in range(3):
        one = at_work.client(i, 1)
        for samples in (one.train, one.val, one.test):
            assert len(samples) == 0 or float(samples.inputs["a"].abs().max()) < 100
    assert sum(fleet.training_bytes().values()) == 5 * (8 + 4 * 12 * 3)


def test_every_owner_is_a_client_by_default() -> None:
    fleet = Fleet.of(three())
    assert len(fleet) == 3
    assert fleet.client_of is not None
    assert fleet.client_of.tolist() == [0] * 5 + [1] * 3 + [2] * 2
    assert Fleet.of(three(), seed=4).streams.seed == 4


def test_normalisation_takes_each_clients_own_training_windows_and_no_other() -> None:
    rng = np.random.default_rng(0)
    data = windows((0,) * 20 + (1,) * 5 + (2,) * 5, [0] * 30, steps=40)
    other = windows((0,) * 20 + (1,) * 5 + (2,) * 5, [1] * 30, steps=40)
    both = Windows(
        {m: np.concatenate([3 * data.inputs[m] + 10, other.inputs[m] - 4]) for m in data.inputs},
        *(np.concatenate([getattr(d, f) for d in (data, other)]) for f in ("target", "owner")),
        np.concatenate([data.split, other.split]),
        data.task,
    )
    both.inputs["a"][20:30] += rng.uniform(50, 100, (10, 2, 40)).astype(np.float32)  # held out
    fleet = bound(both)
    for i in range(2):
        one = fleet.client(i, 1)
        assert isinstance(one.train, TensorSamples)
        x = one.train.inputs["a"].double()
        torch.testing.assert_close(x.mean((0, 1)), torch.zeros(2).double(), atol=1e-5, rtol=0)
        torch.testing.assert_close(
            x.std((0, 1), correction=0), torch.ones(2).double(), atol=1e-5, rtol=0
        )
    # Held-out windows are moved by the training statistics, whatever they hold themselves.
    raw = both.inputs["a"].astype(np.float64)
    mean, deviation = raw[:20].mean((0, 2)), raw[:20].std((0, 2))
    expected = (np.moveaxis(raw[25:30], 1, -1) - mean) / deviation
    np.testing.assert_allclose(fleet.client(0, 1).test.inputs["a"], expected, rtol=1e-4, atol=1e-4)


def test_absent_windows_do_not_count_in_normalisation_and_hold_zeros() -> None:
    present = {"a": np.array([1, 1, 0, 1, 0, 1, 1, 1, 1, 1], bool)}
    clean, dirty = three(present=present), three(present=present)
    dirty.inputs["a"][[2, 4]] = 1e20
    one, two = bound(clean).client(0, 1), bound(dirty).client(0, 1)
    assert same_bits(one.train.inputs["a"], two.train.inputs["a"])
    assert bool((two.train.inputs["a"][2] == 0).all())
    assert two.train.present["a"].tolist() == [True, True, False]
    assert bool((two.test.inputs["a"] == 0).all())
    assert two.test.present["a"].tolist() == [False]


def test_a_constant_channel_becomes_zero_and_not_nan() -> None:
    data = three()
    data.inputs["a"][:, 1] = 3.5
    x = bound(data).client(0, 1).train.inputs["a"]
    assert bool((x[..., 1] == 0).all())
    assert bool(x.isfinite().all())


def test_without_normalisation_values_are_as_they_came() -> None:
    data = three()
    one = bound(data, normalise="none").client(0, 1)
    assert same_bits(one.train.inputs["a"], original(data, "a", [0, 1, 2]))


def test_normalising_leaves_the_source_alone() -> None:
    data = three()
    data.inputs["a"][1] = np.nan
    before = {m: values.copy() for m, values in data.inputs.items()}
    fleet = bound(data)
    for i in range(3):
        fleet.client(i, 1)
    for m, values in data.inputs.items():
        assert np.array_equal(values, before[m], equal_nan=True)
    assert data.present == {}


def test_a_large_offset_does_not_drown_the_signal() -> None:
    """Air pressure: 100 000 Pa that vary by a few. 200 000 values per channel."""
    data = windows((0,) * 1000, channels={"a": 3}, steps=200)
    data.inputs["a"][:] = 1e5 + 3 * data.inputs["a"]
    x = bound(data).client(0, 1).train.inputs["a"].double()
    assert abs(float(x.mean())) < 0.01
    assert float(x.std()) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("normalise", ["client", "none"])
def test_a_window_of_nan_is_absent_and_a_hole_is_filled_with_zero(normalise: Any) -> None:
    data = three()
    data.inputs["a"][0] = np.nan
    data.inputs["a"][1, 0, 3:6] = np.nan
    data.inputs["a"][2, 1, 0] = np.inf
    data.inputs["a"][4] = np.nan  # the only test window
    one = bound(data, normalise=normalise).client(0, 1)
    x = one.train.inputs["a"]
    assert bool(x.isfinite().all())
    assert one.train.present["a"].tolist() == [False, True, True]
    assert one.train.present["b"].tolist() == [True] * 3
    assert one.test.present["a"].tolist() == [False]
    assert bool((x[0] == 0).all())
    assert bool((x[1, 3:6, 0] == 0).all())
    assert float(x[2, 0, 1]) == 0.0
    assert int((x[1] == 0).sum()) == 3
    if normalise == "client":
        known = np.concatenate([data.inputs["a"][1, 0, :3], data.inputs["a"][1, 0, 6:]])
        known = np.concatenate([known, data.inputs["a"][2, 0]])
        expected = (known[0] - known.mean()) / known.std()
        assert float(x[1, 0, 0]) == pytest.approx(expected, rel=1e-4)


def test_a_channel_that_never_gave_a_value_becomes_zero_silently() -> None:
    data = three()
    data.inputs["a"][:, 1] = np.nan
    one = bound(data).client(0, 1)
    assert bool((one.train.inputs["a"][..., 1] == 0).all())
    assert one.train.present["a"].all()


@pytest.mark.parametrize("values", [(np.inf, -np.inf), (3e38, 3e38)])
def test_odd_values_do_not_make_numpy_warn(values: tuple[float, float]) -> None:
    data = three()
    data.inputs["a"][0, 0, :2] = values
    one = bound(data, normalise="none").client(0, 1)
    assert bool(one.train.inputs["a"].isfinite().all())


def test_the_pooled_client_holds_everybodys_windows_and_trains_alone() -> None:
    data = three()
    fleet = Fleet.of(data, suites=SUITES, models=(TINY,)).pool()
    at_work = FleetClients(fleet, Centralized())
    assert (len(fleet), len(at_work.cards)) == (3, 4)
    assert at_work.trainers == (3,)
    card = at_work.cards[3]
    assert card.modalities == ("a", "b")
    assert card.samples == 6
    # b of client 1 and a of client 2 were never sensed
    assert dict(card.samples_by_modality) == {"a": 5, "b": 4}
    one = at_work.client(3, 1)
    assert one.train.present["a"].tolist() == [True] * 5 + [False]
    assert one.train.present["b"].tolist() == [True] * 3 + [False] * 2 + [True]
    assert bool((one.train.inputs["b"][3:5] == 0).all())
    parts = [at_work.client(i, 1).train for i in (0, 1)]
    assert same_bits(one.train.inputs["a"][:5], torch.cat([part.inputs["a"] for part in parts]))
    assert one.train.target.tolist() == data.target[[0, 1, 2, 5, 6, 8]].tolist()
    assert at_work.holders("encoders.a.conv1.weight") == 1
    assert bool(one.model(one.train.batch(torch.arange(6))).prediction.isfinite().all())


def test_the_pool_knows_the_modalities_that_somebody_owns_and_no_other() -> None:
    fleet = Fleet.of(three(), suites=[("a",)] * 3, models=(TINY,)).pool()
    one = FleetClients(fleet, Centralized()).client(3, 1, fresh=True)
    assert one.card.modalities == ("a",)
    assert dict(one.card.samples_by_modality) == {"a": 6}
    assert one.model(one.train.batch(torch.arange(2))).prediction.shape == (2, 3)


def test_initial_parameters_cover_every_path_once_in_sorted_order() -> None:
    fleet = bound(three(), suites=SUITES)
    params = fleet.params
    assert list(params) == sorted({path for card in fleet.cards for path in card.params})
    for card in fleet.cards:
        assert {path: tuple(params[path].shape) for path in card.params} == dict(card.params)
    # A fresh client starts from exactly these.
    for i in range(3):
        own = State.of(fleet.client(i, 1, fresh=True).model)
        assert all(same_bits(own[path], params[path]) for path in own)
    assert fleet.holders("encoders.a.conv1.weight") == 2
    assert fleet.holders("head.out.bias") == 3
    assert fleet.holders("nowhere") == 0


def test_holders_are_counted_among_those_that_train() -> None:
    fleet = bound(windows((0, 0, 1, 2), owner=(0, 1, 2, 2)))
    assert fleet.trainers == (0, 1)
    assert fleet.holders("head.out.bias") == 2


def test_fresh_restores_parameters_and_buffers() -> None:
    fleet = bound(three(), models=(TINY_NORM,))
    start = fleet.client(0, 1, fresh=True)
    before = State.of(start.model) | State.buffers(start.model)
    before.map(lambda t: t + 1).load_into(start.model)
    kept = fleet.client(0, 1)
    assert not same_bits(State.of(kept.model)["head.out.bias"], before["head.out.bias"])
    again = fleet.client(0, 1, fresh=True)
    found = State.of(again.model) | State.buffers(again.model)
    assert all(same_bits(found[path], before[path]) for path in before)


def test_the_method_does_not_change_the_start_and_the_seed_does() -> None:
    """Paired comparison: methods begin from the same weights."""
    plain, other = bound(three()).params, bound(three(), FedRoD()).params
    assert all(same_bits(plain[path], other[path]) for path in plain)
    reseeded = bound(three(), seed=1).params
    assert not same_bits(plain["head.out.weight"], reseeded["head.out.weight"])


def test_making_clients_leaves_the_users_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    fleet = bound(three(), FedRoD(), models=("gru",))
    fleet.params, fleet.client(0, 1, fresh=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_mixed_models_are_refused_where_parameters_are_averaged() -> None:
    fleet = bound(three(), models=("cnn_small", "cnn", "cnn"))
    assert [card.model for card in fleet.cards] == ["cnn_small", "cnn", "cnn"]
    with pytest.raises(CommunisError) as caught:
        fleet.params  # noqa: B018
    message = str(caught.value)
    assert "FedAvg averages parameters" in message
    assert "encoders.a.conv1.weight" in message
    assert "(5, 2, 16)" in message
    assert "(5, 2, 32)" in message
    assert "[fleet] models" in message
    assert "fedproto" in message
    assert "methods.fedavg.by_model = true" in message


def test_each_client_may_have_its_own_model() -> None:
    kinds = (Architecture(width=8), "gru", Architecture(width=4))
    fleet = bound(three(), models=kinds)
    assert [card.model for card in fleet.cards] == [repr(kinds[0]), "gru", repr(kinds[2])]
    for i in range(3):
        one = fleet.client(i, 1, fresh=True)
        assert {k: tuple(p.shape) for k, p in one.model.named_parameters()} == one.card.params
        assert one.model(one.train.batch(torch.arange(1))).prediction.shape == (1, 3)
    pooled = FleetClients(Fleet.of(three(), models=kinds).pool(), Centralized())
    assert pooled.cards[3].model == repr(kinds[0])


def test_images_are_normalised_per_channel_and_reach_the_encoder() -> None:
    rng = np.random.default_rng(0)
    depth = (5 + rng.standard_normal((10, 3, 6, 7))).astype(np.float32)
    one = bound(three(inputs={"depth": depth}), models=("cnn2d",)).client(0, 1, fresh=True)
    assert one.train.inputs["depth"].shape == (3, 6, 7, 3)
    assert float(one.train.inputs["depth"].mean((0, 1, 2)).abs().max()) < 1e-4
    batch = one.train.batch(torch.arange(3))
    assert batch.inputs["depth"].shape == (3, 3, 6, 7)
    assert one.model(batch).prediction.shape == (3, 3)


def test_one_plane_per_window_reaches_the_image_encoder() -> None:
    csi = np.random.default_rng(0).standard_normal((10, 20, 30), dtype=np.float32)
    one = bound(three(inputs={"csi": csi}), models=("cnn2d",)).client(0, 1, fresh=True)
    assert one.model(one.train.batch(torch.arange(2))).prediction.shape == (2, 3)


def test_too_few_suites_are_refused_with_both_numbers() -> None:
    with pytest.raises(CommunisError, match="belong to 3 clients, but sensors are given for 2"):
        Fleet.of(three(), suites=[("a",)] * 2)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_wrong_number_of_models_is_refused_with_both_numbers(count: int) -> None:
    with pytest.raises(CommunisError, match=rf"{count} models for 3 clients: give one, or one per"):
        Fleet.of(three(), models=("cnn",) * count)


@pytest.mark.parametrize(
    "suite", [("zz",), ("b", "a"), ("a", "a")], ids=["unknown", "unsorted", "twice"]
)
def test_sensors_that_no_client_can_have_are_refused(suite: tuple[str, ...]) -> None:
    with pytest.raises(CommunisError, match=r"expected a sorted choice of \['a', 'b'\]"):
        Fleet.of(three(), suites=[("a",), suite, ("b",)])


def test_a_client_without_a_sensor_is_refused_with_the_way_out() -> None:
    with pytest.raises(CommunisError, match=r"client 1 has no sensor: give it at least one of"):
        Fleet.of(three(), suites=[("a",), (), ("b",)])


@pytest.mark.parametrize("length", [4, 11])
def test_a_partition_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(CommunisError):
        Fleet.of(three(), client_of=np.zeros(length, np.int64))


def test_an_unknown_model_is_refused_by_name() -> None:
    with pytest.raises((CommunisError, KeyError), match="cnm"):
        bound(three(), models=("cnm",)).cards  # noqa: B018


def test_evicted_clients_come_back_with_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    roomy, tight = bound(three()), bound(three())
    expected = [roomy.client(i, 1).train.inputs["a"] for i in range(3)]
    monkeypatch.setattr(fleet_module, "CACHE_BYTES", 1)
    for i in (0, 1, 2, 0, 2, 1, 0):
        assert same_bits(tight.client(i, 1).train.inputs["a"], expected[i])


def test_the_cache_saves_work_while_there_is_room() -> None:
    fleet = bound(three())
    first = fleet.client(0, 1)
    assert fleet.client(0, 2).train is first.train


def test_the_least_recently_used_client_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    data = windows((0,) * 9, owner=np.repeat(range(3), 3).tolist())
    fleet = bound(data)
    size = fleet.client(0, 1).train.nbytes
    fleet = bound(data)
    monkeypatch.setattr(fleet_module, "CACHE_BYTES", 2 * size)
    zero, one = fleet.client(0, 1).train, fleet.client(1, 1).train
    fleet.client(0, 1)  # used again, so 1 is older now
    fleet.client(2, 1)
    assert fleet.client(0, 1).train is zero
    assert fleet.client(1, 1).train is not one


def test_memory_depends_on_the_cache_and_not_on_the_clients_visited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = windows((0, 0, 0, 1, 2) * 60, owner=np.repeat(range(60), 5).tolist())
    fleet = bound(data)
    size = sum(
        samples.nbytes
        for samples in (fleet.client(0, 1).train, fleet.client(0, 1).val, fleet.client(0, 1).test)
    )
    fleet = bound(data)
    monkeypatch.setattr(fleet_module, "CACHE_BYTES", 7 * size)
    seen = []
    for round in (1, 2):
        for i in range(60):
            seen.append(weakref.ref(fleet.client(i, round).train.inputs["a"]))
            assert sum(ref() is not None for ref in seen) <= 7
    assert fleet._cached_bytes == 7 * size


def test_pages_of_a_memory_map_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Visiting every client of a file of 96 MB leaves the process about as large as before."""
    clients, count = 48, 64
    made = np.lib.format.open_memmap(
        tmp_path / "x.npy", "w+", np.float32, (clients * count, 2, 4096)
    )
    made[:] = 1.0
    made.flush()
    del made
    n = clients * count
    data = Windows(
        {"a": np.load(tmp_path / "x.npy", mmap_mode="r")},
        np.zeros(n, np.int64),
        np.repeat(np.arange(clients), count),
        np.zeros(n, np.int8),
        Classification(2),
    )
    monkeypatch.setattr(fleet_module, "CACHE_BYTES", 1 << 20)
    fleet = bound(data, normalise="none")
    for i in range(3):  # whatever the first clients load besides is there now
        assert float(fleet.client(i, 1).train.inputs["a"][0, 0, 0]) == 1.0
    before = psutil.Process().memory_info().rss
    for i in range(clients):
        fleet.client(i, 1)
    assert psutil.Process().memory_info().rss - before < 32 << 20


@dataclass(frozen=True)
class Counted(FedAvg):
    """Counts how many models are built."""

    built: ClassVar[Counter[str]] = Counter()

    def equip(self, model: Model, task: Task) -> None:
        self.built["models"] += 1


def test_ten_thousand_clients_share_models_and_shapes() -> None:
    """The cards of a population need one model per architecture and suite, not one per client."""
    clients = 10_000
    suites = [("a", "b") if i % 3 else ("a",) for i in range(clients)]
    data = windows((0, 2) * clients, np.repeat(np.arange(clients), 2).tolist(), steps=4)
    Counted.built.clear()
    fleet = bound(data, Counted(), suites=suites)
    cards = fleet.cards
    assert len(cards) == clients
    assert Counted.built["models"] == 2
    assert len({id(card.params) for card in cards}) == 2
    assert len(fleet.params) > 0
    assert fleet.trainers == tuple(range(clients))
    assert fleet.holders("encoders.b.conv1.weight") == sum(len(suite) == 2 for suite in suites)
    # Cards alone touch no window.
    assert fleet._cached_bytes == 0
    assert Counted.built["models"] == 2
    one = fleet.client(9_999, 1)
    assert np.array_equal(one.train.target, data.target[19_998:19_999])


def test_training_bytes_are_those_of_the_raw_training_windows() -> None:
    fleet = Fleet.of(three(), suites=SUITES)
    # 12 steps, two channels in a and one in b, four bytes each; eight for the target
    assert fleet.training_bytes() == {
        0: 3 * (8 + 4 * 12 * 3),
        1: 2 * (8 + 4 * 12 * 2),
        2: 1 * (8 + 4 * 12 * 1),
    }


def test_a_fleet_survives_pickling_and_gives_the_same_clients() -> None:
    fleet = Fleet.of(three(), seed=3, suites=SUITES, models=(TINY,))
    fleet.rows(0)
    again = pickle.loads(pickle.dumps(fleet))
    for i in range(3):
        one = FleetClients(fleet, FedAvg()).client(i, 1, fresh=True)
        two = FleetClients(again, FedAvg()).client(i, 1, fresh=True)
        assert one.card == two.card
        for m in SUITES[i]:
            assert same_bits(one.train.inputs[m], two.train.inputs[m])
        a, b = State.of(one.model), State.of(two.model)
        assert all(same_bits(a[path], b[path]) for path in a)


def test_a_client_with_one_split_only_has_empty_others() -> None:
    fleet = bound(windows((0, 0, 2, 2), owner=(0, 0, 1, 1)))
    first, second = fleet.client(0, 1), fleet.client(1, 1)
    assert [len(s) for s in (first.train, first.val, first.test)] == [2, 0, 0]
    assert [len(s) for s in (second.train, second.val, second.test)] == [0, 0, 2]
    # Without training windows of its own it is normalised by those of the fleet.
    data = fleet.fleet.windows
    known = original(data, "a", [0, 1]).reshape(-1, 2).double()
    mean, deviation = known.mean(0), known.std(0, correction=0)
    expected = (original(data, "a", [2, 3]).double() - mean) / deviation
    assert torch.allclose(second.test.inputs["a"].double(), expected, atol=1e-6)
    assert fleet.trainers == (0,)


def test_targets_of_other_tasks_pass_through() -> None:
    places = np.random.default_rng(0).standard_normal((10, 2)).astype(np.float32)
    one = bound(replace(three(), target=places, task=Localisation())).client(0, 1)
    assert same_bits(one.train.target, torch.from_numpy(places[:3]))
    assert one.card.sizes == {
        "classes": 0,
        "outputs": 2,
        "embedding": 6,
        "modalities": 2,
        "features": 8,
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [(np.int32, torch.int64), (np.uint8, torch.int64)],
)
def test_targets_take_the_type_that_losses_need(given: Any, expected: torch.dtype) -> None:
    data = three()
    one = bound(replace(data, target=data.target.astype(given))).client(0, 1)
    assert one.train.target.dtype is expected
    assert one.train.target.tolist() == data.target[:3].tolist()


@pytest.mark.parametrize(
    "name", [n for n, kind in ZOO.items() if kind.encoder not in ("cnn2d", "moment")]
)
def test_every_named_model_serves_a_fleet(name: str) -> None:
    kind = replace(ZOO[name], weights="random" if ZOO[name].pretrained else "")
    fleet = bound(three(), suites=SUITES, models=(kind,))
    assert len(fleet.params) > 0
    for i in range(3):
        one = fleet.client(i, 1, fresh=True)
        assert one.model(one.train.batch(torch.arange(1))).prediction.shape == (1, 3)


def test_public_windows_are_of_a_client_with_all_sensors() -> None:
    fleet = Fleet.of(
        windows((0,) * 6, owner=[0, 0, 1, 1, 2, 2]), suites=[("a",), ("a", "b"), ("a", "b")]
    )
    assert public_client(fleet) == 1
    assert public_client(replace(fleet, public=2)) == 2
    lying = replace(fleet, attack=Attack("label_flip", (1,)))
    assert public_client(lying) == 1  # the same with and without liars
    for who in (0, 7, -5):
        with pytest.raises(CommunisError, match=f"{who} is no such client, but 1, 2 would do"):
            public_client(replace(fleet, public=who))
    alone = replace(fleet, suites=[("a",), ("b",), ("b",)])
    with pytest.raises(CommunisError, match="there is none: see public and roles"):
        public_client(alone)


def test_attackers_that_are_not_there_are_refused() -> None:
    with pytest.raises(CommunisError, match="client 4 is an attacker, but the fleet has 1 clients"):
        Fleet.of(windows(), attack=Attack("shift", (0, 4)))

"""The training loop against a plain one, and what it must leave as it was."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import Batch, Client, CommunisError, Model, Output, Recipe, Run, State
from communis.core.tasks import Classification, Localisation
from communis.methods.parts.optim import clip_gradients
from communis.methods.parts.training import balanced_order
from tests.fleets import make, mixed_fleet
from tests.unit.small import TINY_NORM, client, random, same_bits, windows

MIXED_SPLIT = (0,) * 10 + (1, 1, 2, 2)


def explicit(
    source: Client, epochs: int, size: int, lr: float, steps: int = 10**9
) -> tuple[State, int, float]:
    """Plain SGD on a copy of the client's model, written out; state, steps, mean loss."""
    model, data = copy.deepcopy(source.model), source.train
    rng = source.generator("batches")
    taken, losses, seen = 0, 0.0, 0
    model.train()
    for _ in range(epochs):
        order = rng.permutation(len(data))
        for start in range(0, len(data), size):
            if taken == steps:
                break
            batch = data.batch(torch.from_numpy(order[start : start + size]))
            model.zero_grad()
            loss = F.cross_entropy(model(batch).prediction, batch.target)
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p.add_(p.grad, alpha=-lr)
            taken, losses, seen = taken + 1, losses + loss.item() * len(batch), seen + len(batch)
    return State(model.state_dict()), taken, losses / seen


def everything(of: Client) -> State:
    return State.of(of.model) | State.buffers(of.model)


def same_states(a: State, b: State) -> bool:
    return set(a) == set(b) and all(same_bits(a[path], b[path]) for path in a)


@pytest.mark.parametrize("kind", [None, TINY_NORM], ids=["plain", "batchnorm"])
@pytest.mark.parametrize(("epochs", "size"), [(1, 4), (3, 4), (2, 5), (1, 100)])
def test_it_equals_a_plain_loop_to_the_bit(epochs: int, size: int, kind: Any) -> None:
    """Ten windows, so batches of four end with a batch of two."""
    one = client(windows(MIXED_SPLIT), **({"models": (kind,)} if kind else {}))
    expected, steps, loss = explicit(one, epochs, size, 0.3)
    before = everything(one)
    done = Recipe(lr=0.3, epochs=epochs, batch=size).train(one)
    assert same_states(everything(one), expected)
    assert not same_states(everything(one), before)
    assert (done.steps, done.loss) == (steps, loss)
    assert one.log["loss"] == loss


def test_max_steps_ends_within_an_epoch_and_across_epochs() -> None:
    for most, expected_steps in ((2, 2), (4, 4), (100, 6)):
        one = client()
        expected, steps, loss = explicit(one, 2, 4, 0.3, most)
        done = Recipe(lr=0.3, epochs=2, batch=4, max_steps=most).train(one)
        assert same_states(everything(one), expected)
        assert (done.steps, done.loss) == (steps, loss)
        assert done.steps == expected_steps


def test_the_order_is_the_clients_own_in_each_round() -> None:
    def trained(round: int, seed: int = 0) -> State:
        one = client(round=round, seed=seed)
        State.of(client().model).load_into(one.model)  # one start for all
        Recipe(batch=4).train(one)
        return everything(one)

    assert same_states(trained(1), trained(1))
    assert not same_states(trained(1), trained(2))
    assert not same_states(trained(1), trained(1, seed=1))


def test_epochs_given_to_the_call_win() -> None:
    assert Recipe(epochs=5, batch=4).train(client(), epochs=1).steps == 3
    assert Recipe(epochs=1, batch=4).train(client(), epochs=0).steps == 0


def test_no_epochs_change_nothing_and_the_loss_is_unknown() -> None:
    one = client()
    before = everything(one)
    done = Recipe(epochs=0, weight_decay=0.1, momentum=0.9).train(one)
    assert done.steps == 0
    assert math.isnan(done.loss)
    assert same_states(everything(one), before)


@pytest.mark.parametrize("kind", ["cnn_small", "cnn_norm", "gru", "transformer"])
def test_a_client_without_training_windows_takes_no_step(kind: str) -> None:
    one = client(windows((1, 2, 2)), models=(kind,))
    before = everything(one)
    done = Recipe(weight_decay=0.1).train(one)
    assert done.steps == 0
    assert math.isnan(done.loss)
    assert same_states(everything(one), before)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_parameters_outside_the_paths_keep_their_bits(optimizer: Any) -> None:
    one = client()
    paths = ["head.out.weight", "encoders.a.conv2.weight"]
    before = everything(one)
    momentum = 0.9 if optimizer == "sgd" else 0.0
    recipe = Recipe(
        lr=0.1, epochs=2, batch=4, optimizer=optimizer, momentum=momentum, weight_decay=0.1
    )
    recipe.train(one, paths=paths)
    after = everything(one)
    changed = {path for path in before if not same_bits(before[path], after[path])}
    assert changed == set(paths)


def test_frozen_parameters_let_gradients_through_and_get_none() -> None:
    one = client()
    frozen = [path for path in one.card.params if path != "encoders.a.conv1.weight"]

    def adjust(model: Model) -> None:
        parameters = model.by_path[0]
        assert all(parameters[path].grad is None for path in frozen)
        found = parameters["encoders.a.conv1.weight"].grad
        assert found is not None
        assert bool(found.abs().sum() > 0)

    assert Recipe(batch=4).train(one, paths=["encoders.a.conv1.weight"], adjust=adjust).steps == 3


def test_a_chosen_path_that_the_loss_does_not_reach_is_left_alone() -> None:
    """No gradient, so no decay either."""
    one = client()
    before = everything(one)

    def only_a(output: Output, batch: Batch) -> Tensor:
        return output.features["a"].square().mean()

    Recipe(lr=0.1, optimizer="adamw", weight_decay=0.5).train(one, loss=only_a)
    after = everything(one)
    for path in before:
        assert same_bits(before[path], after[path]) != path.startswith("encoders.a.")


def test_no_path_at_all_trains_nothing() -> None:
    one = client()
    before = everything(one)
    Recipe().train(one, paths=[])
    assert same_states(everything(one), before)


def test_the_loss_is_the_methods_own() -> None:
    one = client()
    seen: list[int] = []

    def zero(output: Output, batch: Batch) -> Tensor:
        seen.append(len(batch))
        return output.prediction.sum() * 0 + len(batch)

    done = Recipe(batch=4).train(one, loss=zero)
    assert seen == [4, 4, 2]
    # The mean over samples, not over batches: (4 * 4 + 4 * 4 + 2 * 2) / 10.
    assert done.loss == pytest.approx(3.6)


def test_adjust_sees_every_step_after_backward_and_before_the_step() -> None:
    one = client()
    start = everything(one)
    calls: list[bool] = []

    def adjust(model: Model) -> None:
        calls.append(all(p.grad is not None for p in model.parameters()))
        if len(calls) == 1:
            assert same_states(everything(one), start)
        for p in model.parameters():
            p.grad = torch.ones_like(p)

    Recipe(lr=0.5, epochs=2, batch=4).train(one, adjust=adjust)
    assert calls == [True] * 6
    for path, tensor in everything(one).items():
        torch.testing.assert_close(tensor, start[path] - 3.0)


def test_gradients_do_not_pile_up_between_steps() -> None:
    one = client()
    gradients: list[Tensor] = []

    def adjust(model: Model) -> None:
        grad = model.by_path[0]["head.out.bias"].grad
        assert grad is not None
        gradients.append(grad.clone())
        for p in model.parameters():
            p.grad = torch.zeros_like(p)  # the model stays where it is

    # One batch of everything: at one place each epoch finds the same gradient.
    Recipe(epochs=3, batch=100).train(one, adjust=adjust)
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


def test_gradients_are_cleared_afterwards() -> None:
    one = client()
    Recipe().train(one)
    assert all(p.grad is None for p in one.model.parameters())
    Recipe().train(one, paths=["head.out.bias"])
    assert all(p.grad is None for p in one.model.parameters())


def failing(output: Output, batch: Batch) -> Tensor:
    if len(batch) == 2:  # the last batch, so that some steps were taken
        raise ZeroDivisionError
    return output.prediction.square().mean()


def test_an_error_in_the_loss_leaves_no_trace_but_the_steps_taken() -> None:
    one = client()
    rng = torch.get_rng_state()
    before = everything(one)
    with pytest.raises(ZeroDivisionError):
        Recipe(batch=4).train(one, loss=failing, paths=["head.out.bias"])
    assert all(p.requires_grad for p in one.model.parameters())
    assert all(p.grad is None for p in one.model.parameters())
    assert torch.equal(torch.get_rng_state(), rng)
    assert not same_states(everything(one), before)
    assert "loss" not in one.log


def test_every_parameter_is_trainable_again_afterwards() -> None:
    one = client()
    Recipe().train(one, paths=["head.out.bias"])
    assert all(p.requires_grad for p in one.model.parameters())


def test_a_parameter_that_was_frozen_before_stays_frozen() -> None:
    one = client()
    frozen = one.model.by_path[0]["encoders.a.conv1.weight"]
    frozen.requires_grad_(False)
    Recipe().train(one, paths=["head.out.bias"])
    assert not frozen.requires_grad


def test_the_users_own_random_numbers_are_untouched() -> None:
    one = client()
    before = torch.get_rng_state()
    Recipe(batch=4).train(one)
    assert torch.equal(torch.get_rng_state(), before)


def test_torch_draws_inside_follow_the_client_and_the_round() -> None:
    """Dropout and noise in a loss: the same in the same round, whatever the user drew before."""

    def draws(round: int, skip: int) -> list[float]:
        found: list[float] = []

        def noisy(output: Output, batch: Batch) -> Tensor:
            found.append(torch.rand(()).item())
            return output.prediction.sum()

        torch.rand(skip)
        Recipe(batch=4).train(client(round=round), loss=noisy)
        return found

    assert draws(1, 1) == draws(1, 5)
    assert len(set(draws(1, 0) + draws(2, 0))) == 6


def test_the_model_trains_in_training_mode() -> None:
    one = client(models=(TINY_NORM,))
    one.model.eval()
    modes: list[bool] = []

    def spy(output: Output, batch: Batch) -> Tensor:
        modes.append(one.model.training)
        return output.prediction.sum()

    Recipe(batch=4).train(one, loss=spy)
    assert modes == [True] * 3
    assert State.buffers(one.model)["encoders.a.norm1.num_batches_tracked"].item() == 3


def test_every_training_window_is_seen_once_per_epoch_and_no_other() -> None:
    numbered = windows(MIXED_SPLIT, target=np.arange(14), task=Classification(14))
    one = client(numbered)
    seen: list[int] = []

    def spy(output: Output, batch: Batch) -> Tensor:
        seen.extend(batch.target.tolist())
        return output.prediction.sum()

    Recipe(batch=3, epochs=2).train(one, loss=spy)
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]


def test_training_learns() -> None:
    """A target that the inputs decide: the loss must fall well below that of guessing."""
    data = windows((0,) * 30, channels={"a": 2})
    data.inputs["a"][:] += 2.0 * data.target[:, None, None]
    one = client(data)
    first = Recipe(lr=0.1, momentum=0.9, epochs=1, batch=10).train(one).loss
    last = Recipe(lr=0.1, momentum=0.9, epochs=30, batch=10).train(one)
    assert last.loss < 0.5 * first
    assert last.steps == 90


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 0.0},
        {"batch": 0},
        {"epochs": -1},
        {"max_steps": -1},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"weight_decay": -1.0},
        {"optimizer": "rmsprop"},
        {"optimizer": "SGD"},
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(CommunisError, match=next(iter(settings))):
        Recipe(**settings)


def test_the_comparison_sees_one_bit() -> None:
    """`same_bits` decides most tests here."""
    a = random(3)
    b = a.clone()
    b[1] = torch.nextafter(b[1], torch.tensor(9.0))
    assert same_bits(a, a.clone())
    assert not same_bits(a, b)
    assert not same_bits(a, a.double())


@pytest.mark.parametrize(
    ("samples", "batch", "epochs", "max_steps", "seen"),
    [(10, 32, 20, 5, 50), (33, 32, 4, 4, 66), (550, 32, 5, 20, 614), (10, 4, 2, 0, 20),
     (10, 4, 2, 4, 14), (0, 4, 2, 3, 0), (10, 4, 0, 3, 0)],
)  # fmt: skip
def test_windows_that_a_round_passes(
    samples: int, batch: int, epochs: int, max_steps: int, seen: int
) -> None:
    """Last batches of an epoch are short."""
    assert Recipe(batch=batch, epochs=epochs, max_steps=max_steps).passes(samples) == seen


def test_balanced_batches_draw_classes_equally_often() -> None:
    labels = torch.tensor([0] * 50 + [1] * 8 + [2] * 2)
    order = balanced_order(labels, np.random.default_rng(0))
    assert len(order) == 60
    for start in range(0, 60, 3):
        assert sorted(labels[order[start : start + 3]].tolist()) == [0, 1, 2]
    assert set(order[labels[order] == 2].tolist()) == {58, 59}
    assert torch.equal(balanced_order(labels, np.random.default_rng(0)), order)


def test_balanced_training_sees_rare_classes_more_often() -> None:
    own = client(windows((0,) * 30, target=np.array([0] * 28 + [1, 2])))
    seen: list[int] = []

    def loss(output: Any, batch: Any) -> Any:
        seen.extend(batch.target.tolist())
        return output.prediction.sum()

    Recipe(batch=6, balanced=True, lr=1e-6).train(own, loss=loss)
    assert [seen.count(c) for c in range(3)] == [10, 10, 10]


def test_balanced_needs_classes() -> None:
    data = windows((0,) * 6, target=np.zeros((6, 2), np.float32), task=Localisation(2))
    with pytest.raises(CommunisError, match="balanced = true needs a task with classes"):
        Recipe(balanced=True).train(client(data))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_carried_optimiser_goes_on_where_it_was(optimizer: Any) -> None:
    """Two rounds of one step are one round of two steps on the same batches."""
    settings: dict[str, Any] = {"optimizer": optimizer, "lr": 0.01, "batch": 100}
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
    whole, parts, afresh = client(), client(), client()
    Recipe(**settings, **momentum, epochs=2).train(whole)
    for _ in range(2):
        Recipe(**settings, **momentum, carry=True).train(parts)
    expected = State.of(whole.model)
    # one batch holds all windows, in whatever order
    for path, tensor in State.of(parts.model).items():
        torch.testing.assert_close(tensor, expected[path], rtol=1e-4, atol=1e-6)
    for _ in range(2):
        Recipe(**settings, **momentum).train(afresh)
    assert any(
        not torch.allclose(t, expected[p], rtol=1e-4, atol=1e-6)
        for p, t in State.of(afresh.model).items()
    )
    assert not afresh.memory


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_two_models_of_a_client_have_a_memory_each(optimizer: Any) -> None:
    """Trained in turns, each ends where it would have ended alone."""
    settings: dict[str, Any] = {"optimizer": optimizer, "lr": 0.01, "batch": 4, "carry": True}
    recipe = Recipe(**settings, **({"momentum": 0.9} if optimizer == "sgd" else {}))
    both, alone = client(), client()
    start = State.all(both.model)
    w, v = start, start * 2
    for _ in range(2):
        w.load_into(both.model)
        recipe.train(both)
        w = State.all(both.model)
        v.load_into(both.model)
        recipe.train(both, memory="v")
        v = State.all(both.model)
    for first, name, last in ((start, "", w), (start * 2, "v", v)):
        alone.memory.clear()
        first.load_into(alone.model)
        for _ in range(2):
            recipe.train(alone, memory=name)
        found = State.all(alone.model)
        assert all(torch.equal(found[path], t) for path, t in last.items())
        assert alone.memory.keys() <= both.memory.keys()
    assert len(both.memory) == 2 * len(alone.memory)


def clipped_by_torch(source: Client, lr: float, norm: float, prefixes: tuple[str, ...]) -> State:
    """One epoch of plain SGD in which torch itself clips the gradients of every prefix."""
    model = copy.deepcopy(source.model)
    rng = source.generator("batches")
    order = torch.from_numpy(rng.permutation(len(source.train)))
    model.train()
    for indices in torch.split(order, 4):
        batch = source.train.batch(indices)
        model.zero_grad()
        F.cross_entropy(model(batch).prediction, batch.target).backward()
        for prefix in prefixes:
            own = [p for name, p in model.named_parameters() if name.startswith(prefix)]
            torch.nn.utils.clip_grad_norm_(own, norm)
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p.add_(p.grad, alpha=-lr)
    return State(model.state_dict())


@pytest.mark.parametrize(
    "modules", [(), ("head.",), ("encoders.", "fusion.", "head."), ("encoders.a.", "encoders.b.")]
)
def test_gradients_are_clipped_as_a_whole_or_module_by_module(modules: tuple[str, ...]) -> None:
    """torch divides by norm + 1e-6, we do not: at a norm of 0.1 that is a factor of 1e-5."""
    one = client()
    expected = clipped_by_torch(one, 0.3, 0.1, modules or ("",))
    free, *_ = explicit(one, 1, 4, 0.3)
    Recipe(lr=0.3, batch=4, clip=0.1, clip_modules=modules).train(one)
    after = everything(one)
    for path, value in after.items():
        assert torch.allclose(value, expected[path], rtol=1e-4, atol=1e-5), path
    assert not same_states(after, free)


def test_one_clipped_step_by_hand() -> None:
    """The gradient keeps its direction, and the step has the length lr * clip."""
    one, other = client(), client()
    before = everything(one)
    Recipe(lr=0.3, batch=100).train(other)
    Recipe(lr=0.3, batch=100, clip=0.05).train(one)
    step = torch.cat([(everything(one)[k] - before[k]).double().flatten() for k in before])
    free = torch.cat([(everything(other)[k] - before[k]).double().flatten() for k in before])
    assert float(free.norm()) > 0.3 * 0.05
    assert float(step.norm()) == pytest.approx(0.3 * 0.05, rel=1e-3)
    assert float(step @ free / (step.norm() * free.norm())) == pytest.approx(1, abs=1e-5)


def test_a_wide_clip_changes_no_bit() -> None:
    one, other = client(), client()
    Recipe(lr=0.3, batch=4).train(one)
    Recipe(lr=0.3, batch=4, clip=1e6).train(other)
    assert same_states(everything(one), everything(other))


def test_gradients_are_clipped_after_their_adjustment() -> None:
    """What a method adds to a gradient counts as a part of it."""

    def adjust(model: Model) -> None:
        for p in model.parameters():
            assert p.grad is not None
            p.grad += 100.0

    one = client()
    before = everything(one)
    Recipe(lr=0.3, batch=100, clip=1.0).train(one, adjust=adjust)
    step = torch.cat([(everything(one)[k] - before[k]).double().flatten() for k in before])
    assert float(step.norm()) == pytest.approx(0.3, rel=1e-3)


def test_a_gradient_whose_squares_overflow_is_clipped_too() -> None:
    one = torch.nn.Parameter(torch.zeros(4))
    one.grad = torch.full((4,), 1e20)
    clip_gradients([one], 1.0)
    assert one.grad.tolist() == pytest.approx([0.5] * 4, rel=1e-5)
    one.grad = torch.tensor([1.0, float("inf"), 0.0, 0.0])
    clip_gradients([one], 1.0)  # what is not finite is for others to refuse
    assert one.grad.tolist() == [1.0, float("inf"), 0.0, 0.0]


def test_a_clip_that_would_touch_nothing_is_refused() -> None:
    """FedPer's personal layers are called `head.`, not `private.`."""
    for prefix in ("private.", "encoders.typo."):
        with pytest.raises(
            CommunisError, match=f"no path of this fleet's models begins with '{prefix}'"
        ):
            Run(mixed_fleet(), make("fedper", clip=1.0, clip_modules=(prefix,)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clip": -1.0}, "clip must be finite and at least 0, got -1.0"),
        ({"clip": math.inf}, "clip must be finite"),
        ({"clip_modules": ("head.",)}, "no effect with clip = 0: set clip"),
        ({"clip": 1.0, "clip_modules": ("haed.",)}, "no path begins with 'haed.'"),
        ({"clip": 1.0, "clip_modules": ("head.", "head.out.")}, "clipped twice"),
        ({"clip": 1.0, "clip_modules": ("head.", "head.")}, "clipped twice"),
    ],
)
def test_a_clip_that_makes_no_sense_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(CommunisError, match=re.escape(words)):
        Recipe(**settings)

"""Gradient inversion: how well a server can reconstruct a window from its gradient.

The attacker is the server itself, honest but curious: it knows the model and reads a client's
message. It looks for windows whose gradient points where the observed one does (Geiping et al.
2020). In a gradient in clear the signs of the last bias give the label (Zhao et al. 2020). Where
that bias is noised they prove nothing, and every label is tried.

This is the easiest case for an attacker: the gradient of one window at known weights. A client that
has taken many steps of Adam on batches sends a difference of weights that is no gradient. This
attack does not apply to it, which does not mean that such a message is safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from communis.core.contract import Batch, Modality, Model, Path, Task
from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.models import gate
from communis.results.probe.regimes import Regime
from communis.results.probe.ssim import ssim

Gradient = dict[Path, Tensor]
LAST_BIAS = "head.out.bias"


@dataclass(frozen=True)
class Search:
    """How windows are searched for."""

    restarts: int = 3  # descents from random windows, for every label; the best match counts
    iterations: int = 500
    lr: float = 0.05  # of Adam
    smoothness: float = 1e-4  # weight of the total variation
    enough: float = 1e-4  # a match so close needs no further restart

    def __post_init__(self) -> None:
        if self.restarts < 1 or self.iterations < 1:
            raise CommunisError(
                f"restarts and iterations must be at least 1, got {self.restarts} and "
                f"{self.iterations}"
            )


@dataclass(frozen=True)
class Inverted:
    """A reconstructed window."""

    windows: Mapping[Modality, Tensor]  # (channels, ...) in [0, 1]
    target: Tensor  # (1, ...)
    loss: float  # 1 - cosine + the smoothness term: how badly it matches what was observed


@dataclass(frozen=True)
class Attempt:
    """One sample under one regime."""

    regime: str
    sample: int
    ssim: float  # mean over modalities
    label_found: bool | None  # whether the label was inferred rightly; None: it was given
    found: Inverted


def gradient(model: Model, task: Task, batch: Batch, differentiable: bool = False) -> Gradient:
    """The gradient of the loss of a batch, by path; zero for parameters without influence."""
    parameters = model.by_path[0]
    loss = task.loss(model(batch).prediction, batch.target)
    gradients = torch.autograd.grad(
        loss,
        list(parameters.values()),
        create_graph=differentiable,
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(parameters, gradients, strict=True))


def inferred_label(observed: Mapping[Path, Tensor], mark: str = "") -> int | None:
    """The class of a single sample: with cross-entropy the last bias's gradient is softmax - one
    hot, negative for that class alone. None if that bias was not seen."""
    bias = observed.get(LAST_BIAS + mark)
    return None if bias is None else int(bias.argmin())


def candidates(
    model: Model, task: Task, observed: Mapping[Path, Tensor], noised: bool
) -> list[Tensor]:
    """The targets (1,) that a window may have by what was observed: the label that the last bias
    proves, or all labels if that bias is noised."""
    label = inferred_label(observed, model.mark) if task.classes == task.outputs else None
    if label is None:
        raise CommunisError(
            f"the target cannot be inferred without the gradient of {LAST_BIAS} of a "
            "classification: give it"
        )
    labels = range(task.classes) if noised else [label]
    return [torch.tensor([candidate]) for candidate in labels]


def invert(
    model: Model,
    task: Task,
    observed: Mapping[Path, Tensor],
    streams: Streams,
    targets: Sequence[Tensor],
    search: Search | None = None,
) -> Inverted:
    """The windows in [0, 1], of every modality of the model, whose gradient looks most like what
    was observed at the paths that were observed.

    targets: (1, ...) each, what they may show. The attacker takes the one with the best match; it
    cannot know which is the true one."""
    search = search or Search()
    model = model.eval()
    best: Inverted | None = None
    with _twice_differentiable():
        for target, restart in product(targets, range(search.restarts)):
            inverted = _descend(model, task, observed, target, search, streams, restart)
            if best is None or inverted.loss < best.loss:
                best = inverted
            if best.loss < search.enough:
                break
    assert best is not None
    return best


def _descend(
    model: Model,
    task: Task,
    observed: Mapping[Path, Tensor],
    target: Tensor,
    search: Search,
    streams: Streams,
    restart: int,
) -> Inverted:
    """The best point of one descent from a random start."""
    draw = streams.generator("invert", restart)
    guess = {
        m: torch.from_numpy(draw.random((1, *shape), "float32")).requires_grad_()
        for m, shape in model.shapes.items()
    }
    here = {m: torch.ones(1, dtype=torch.bool) for m in guess}
    wanted = torch.cat([t.flatten() for t in observed.values()])
    optimiser = torch.optim.Adam(guess.values(), lr=search.lr)
    best, least = dict(guess), float("inf")
    for _ in range(search.iterations):
        made = gradient(model, task, Batch(guess, here, target), differentiable=True)
        mine = torch.cat([made[path].flatten() for path in observed])
        match = torch.cosine_similarity(mine, wanted, dim=0)
        rough = torch.stack([_variation(x) for x in guess.values()]).sum()
        loss = 1 - match + search.smoothness * rough
        if loss.item() < least:
            least = loss.item()
            best = {m: x.detach().clone() for m, x in guess.items()}
        grads = torch.autograd.grad(loss, list(guess.values()))
        for x, grad in zip(guess.values(), grads, strict=True):
            x.grad = grad
        optimiser.step()
        with torch.no_grad():
            for x in guess.values():
                x.clamp_(0, 1)
    return Inverted({m: x[0] for m, x in best.items()}, target, least)


def _variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbours: in time (1, channels, steps), or of pixels."""
    across = [x.diff(dim=d).abs().mean() for d in range(2, x.ndim) if x.shape[d] > 1]
    return torch.stack(across).sum() if across else x.new_zeros(())


@contextmanager
def _twice_differentiable() -> Iterator[None]:
    """Within, gradients are themselves differentiable: fast kernels of attention are not."""
    with sdpa_kernel(SDPBackend.MATH), gate.twice_differentiable():
        yield


def attempts(
    model: Model,
    task: Task,
    batches: Sequence[Batch],
    regimes: Sequence[Regime],
    streams: Streams,
    search: Search | None = None,
) -> Iterator[Attempt]:
    """Every sample, a batch of one window each, under every regime. The label is inferred where the
    last bias is seen, in clear or noised, and otherwise known to the attacker."""
    for regime in regimes:
        for i, batch in enumerate(batches):
            draw = streams.generator(f"privacy {regime.name}", i)
            observed = regime.see(gradient(model.eval(), task, batch), draw)
            inferable = task.classes == task.outputs and LAST_BIAS + model.mark in observed
            if inferable:
                targets = candidates(model, task, observed, regime.noised)
            else:
                targets = [batch.target]
            inverted = invert(model, task, observed, streams, targets, search)
            alike = [ssim(inverted.windows[m], x[0]) for m, x in batch.inputs.items()]
            right = bool(inverted.target == batch.target) if inferable else None
            yield Attempt(regime.name, i, sum(alike) / len(alike), right, inverted)

"""Class-wise statistics in a shared latent space: estimation, packing and regularisation. This is
the mathematics of CoMFed; equations are those of its paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from communis.core import diagnostics
from communis.core.contract import Client
from communis.core.errors import CommunisError
from communis.core.state import State
from communis.methods.parts.optim import Adam
from communis.methods.parts.training import balanced_order, note_forward

EPSILON = 1e-3  # smooths the norm so that its gradient vanishes at the target
LEAST = 1e-12  # least denominator of a ratio
ROUNDED = 1e-6  # relative to the vectors' length: a smaller separation is a rounding error
NEVER = 1e6  # age of a value that was never received
LOG_EVERY = 10  # rounds between two records of the pull


def class_means(v: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Returns the means (classes, e) of the rows of v (B, e) by class, zero for a class without
    rows, and which classes have rows (classes,)."""
    members = nn.functional.one_hot(y, classes).to(v)
    n = members.sum(0)
    return members.T @ v / n.clamp_min(1)[:, None], n > 0


def phi(x: Tensor, y: Tensor, consensus: str) -> Tensor:
    """Returns phi(x, y), the distance whose sum the consensus minimises (Equation 11): the squared
    distance |x - y|^2 for the mean; for the geometric median the distance |x - y|, smoothed near
    zero."""
    square = (x - y).square().sum(-1)
    return square if consensus == "mean" else (square + EPSILON**2).sqrt()


def regulariser(u: Tensor, has: Tensor, targets: Tensor, known: Tensor, consensus: str) -> Tensor:
    """Returns L_reg, the mean over the classes in `has` of the mean of phi(u_c, target) over the
    pulls (J, classes, d) that have a target for the class. A class without a target adds zero."""
    pulls = phi(u, targets, consensus) * (known & has)  # the terms of Equation 10; one: Equation 12
    by_class = pulls.sum(0) / known.sum(0).clamp_min(1)  # Equation 6
    return by_class.sum() / has.sum().clamp_min(1)


def separation(u: Tensor, has: Tensor) -> Tensor:
    """Returns the root mean square distance of the class vectors from their mean, 0 without any."""
    rows = u[has]
    return (rows - rows.mean(0)).square().sum(1).mean().sqrt() if len(rows) else u.new_zeros(())


def scale(u: Tensor, has: Tensor) -> Tensor:
    """Returns the separation, or 1 if there is none: with a single class, or if class vectors are
    equal up to the rounding of their mean."""
    apart = separation(u, has)
    length = u[has].square().sum(1).mean().sqrt() if bool(has.any()) else apart
    return torch.where(apart > ROUNDED * length, apart, 1.0)


def distances(u: Tensor, has: Tensor, targets: Tensor, known: Tensor) -> dict[str, float]:
    """Returns the diagnostics of a client's class vectors: their separation and, if they have
    targets, their mean distance from these and the separation of the targets of the first pull."""
    log = {diagnostics.SEPARATION.name: float(separation(u, has))}
    pulled = known & has
    if bool(pulled.any()):
        to_targets = (u - targets).norm(dim=-1)[pulled]
        log[diagnostics.DISTANCE.name] = float(to_targets.mean())
        log[diagnostics.TARGET_SEPARATION.name] = float(separation(targets[0], known[0]))
    return log


@torch.no_grad()
def statistics(client: Client, size: int, batch_norms: bool) -> tuple[Tensor, Tensor]:
    """Returns the class means of the embedding over one balanced minibatch, or over all training
    windows if the minibatch is not smaller, with the present model and without dropout.

    batch_norms: BatchNorm uses the statistics of this batch, as in training, but does not update
    its running statistics; else it uses the running statistics."""
    y = client.task.labels(client.train.target)
    if size >= len(y):
        rows = torch.arange(len(y))
    else:
        rows = balanced_order(y, client.generator("latents"))[:size]
    note_forward(client, client.train, len(rows))
    before = State.buffers(client.model)
    client.model.eval()
    if batch_norms:
        for module in client.model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train()
    embedding = client.model(client.train.batch(rows)).embedding
    before.load_into(client.model)
    return class_means(embedding, y[rows.to(y.device)], client.task.classes)


def trained_translator(
    client: Client, start: Tensor, loss: Callable[[Tensor], Tensor], lr: float, steps: int
) -> Tensor:
    """Returns the translator after these steps of Adam. Adam's state is kept in the client's
    memory."""
    P = start.clone().requires_grad_()
    optimizer = Adam([P], lr)
    optimizer.recall(["translator"], client.memory)
    for _ in range(steps):
        (P.grad,) = torch.autograd.grad(loss(P), [P])
        optimizer.step()
    client.memory.update(optimizer.memory(["translator"]))
    return P.detach()


def translator(client: Client, d: int, common: bool, orthonormal: bool) -> Tensor:
    """Returns a random matrix (d, embedding) with entries N(0, 1/embedding) or orthonormal rows. It
    is the client's own, or with `common` or `orthonormal` the same for all clients with this
    embedding size."""
    size = client.card.sizes["embedding"]
    own = () if common or orthonormal else (client.card.id,)
    normal = client.streams.generator("P", *own).standard_normal((d, size))
    drawn = torch.from_numpy(normal)
    rows: Tensor = torch.linalg.qr(drawn.T)[0].T if orthonormal else drawn / size**0.5
    return rows.float().contiguous().to(client.train.target.device)


def logged_sum(client: Client, local: Tensor, regulariser: Tensor) -> Tensor:
    """Returns the sum of both losses. In the first step of every tenth round it logs the strength
    of the pull: the norm of the regulariser's gradient with respect to the model's parameters,
    relative to that of the local loss."""
    if client.round % LOG_EVERY or diagnostics.PULL.name in client.log:
        return local + regulariser
    trained = [p for p in client.model.parameters() if p.requires_grad]
    norms = []
    for loss in (regulariser, local):
        gradients = torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)
        squares = [float(g.square().sum()) for g in gradients if g is not None]
        norms.append(math.sqrt(math.fsum(squares)))
    client.log[diagnostics.PULL.name] = norms[0] / max(norms[1], LEAST)
    return local + regulariser


def consensus_by_class(u: Tensor, age: Tensor, who: Tensor) -> dict[str, Tensor]:
    """Returns the existing targets of u (1, classes, d) by class. Several pulls are values of
    clients and have no consensus, so the result is empty."""
    if who.tolist() != [-1]:
        return {}
    known = (age[0] < NEVER).nonzero().flatten().tolist()
    return {str(c): u[0, c] for c in known}


def pack(u: Tensor, has: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the payload of u (..., classes, d): its rows in `has` (..., classes), and `has` as
    bits."""
    bits = np.packbits(has.cpu().numpy(), axis=-1, bitorder="little")
    return u[has].contiguous(), torch.from_numpy(bits)


def no_targets(u: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the payload of a message without pulls, in the type and size of u (pulls, classes,
    d)."""
    _, classes, d = u.shape
    return pack(u.new_zeros(0, classes, d), u.new_zeros(0, classes, dtype=torch.bool))


def unpack(rows: Tensor, bits: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Reverses `pack`: returns u, zero where `has` is false, and `has`."""
    flags = np.unpackbits(bits.cpu().numpy(), axis=-1, count=classes, bitorder="little")
    has = torch.from_numpy(flags.astype(bool)).to(rows.device)
    u = rows.new_zeros(*has.shape, rows.shape[-1])
    u[has] = rows
    return u, has


def check(rows: Tensor, bits: Tensor, classes: int, d: int) -> None:
    """Refuses a payload that `pack` cannot have made."""
    size = -(-classes // 8)
    if bits.dtype is not torch.uint8 or tuple(bits.shape) != (size,):
        raise CommunisError(
            f"has is {bits.dtype} {tuple(bits.shape)}, expected torch.uint8 {(size,)}"
        )
    flags = np.unpackbits(bits.numpy(), bitorder="little")
    if flags[classes:].any():
        raise CommunisError(f"has has a bit for a class beyond the {classes} classes")
    expected = (int(flags.sum()), d)
    if rows.dtype is not torch.float32 or tuple(rows.shape) != expected:
        raise CommunisError(
            f"u is {rows.dtype} {tuple(rows.shape)}, expected torch.float32 {expected}"
        )


def latest(
    old: tuple[Tensor, Tensor, Tensor], sent: Sequence[tuple[int, Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the last values of every client, u (clients, classes, d), with age and who, after a
    round in which these (client, u, has) were received."""
    u, age, who = old
    known = who.tolist()
    new = torch.tensor([client for client, *_ in sent if client not in known], dtype=who.dtype)
    _, classes, d = u.shape
    who = torch.cat([who, new])
    u = torch.cat([u, u.new_zeros(len(new), classes, d)])
    age = torch.cat([age + 1, torch.full((len(new), classes), NEVER)])
    for client, rows, has in sent:
        place = who.tolist().index(client)
        u[place] = torch.where(has[:, None], rows, u[place])
        age[place] = torch.where(has, 0.0, age[place])
    order = who.argsort()
    return u[order], age[order], who[order]

"""Class-wise statistics in a shared latent space: how they are estimated, packed and pulled
together. The mathematics of CoMFed."""

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
from communis.methods.parts.training import in_turn, note_forward

EPSILON = 1e-3  # the norm is smoothed so that its slope vanishes at the target
LEAST = 1e-12  # keeps a quotient finite
ROUNDED = 1e-6  # of the vectors' length: in float32 what is apart by less is apart by rounding
NEVER = 1e6  # the age of what was not heard yet
TRACED = 10  # rounds between two looks at the pull


def class_means(v: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """(classes, e) means of the rows of v (B, e) by class, zero without any; and which have one."""
    members = nn.functional.one_hot(y, classes).to(v)
    n = members.sum(0)
    return members.T @ v / n.clamp_min(1)[:, None], n > 0


def phi(x: Tensor, y: Tensor, consensus: str) -> Tensor:
    """The distance whose sum the consensus makes least: squared for the mean; for the median
    itself, smoothed near zero."""
    square = (x - y).square().sum(-1)
    return square if consensus == "mean" else (square + EPSILON**2).sqrt()


def regulariser(u: Tensor, has: Tensor, targets: Tensor, known: Tensor, consensus: str) -> Tensor:
    """L_reg: the mean over the classes in `has` of phi(u_c, target), itself the mean over those
    pulls (J, classes, d) that know the class; a class without any adds nothing."""
    pulls = phi(u, targets, consensus) * (known & has)
    by_class = pulls.sum(0) / known.sum(0).clamp_min(1)
    return by_class.sum() / has.sum().clamp_min(1)


def separation(u: Tensor, has: Tensor) -> Tensor:
    """The root mean square distance of class vectors from their mean."""
    rows = u[has]
    return (rows - rows.mean(0)).square().sum(1).mean().sqrt() if len(rows) else u.new_zeros(())


def scale(u: Tensor, has: Tensor) -> Tensor:
    """The separation, or 1 where there is none, as of a single class or of equal class vectors,
    whose mean is rounded."""
    found = separation(u, has)
    length = u[has].square().sum(1).mean().sqrt() if bool(has.any()) else found
    return torch.where(found > ROUNDED * length, found, 1.0)


def course(u: Tensor, has: Tensor, targets: Tensor, known: Tensor) -> dict[str, float]:
    """How far class vectors are from each other, from their targets, and these (of the first pull)
    from each other, for the client's log; the latter two where there are any."""
    found, shared = {diagnostics.SEPARATION.name: float(separation(u, has))}, known & has
    if bool(shared.any()):
        distances = (u - targets).norm(dim=-1)[shared]
        found[diagnostics.DISTANCE.name] = float(distances.mean())
        found[diagnostics.TARGET_SEPARATION.name] = float(separation(targets[0], known[0]))
    return found


@torch.no_grad()
def statistics(client: Client, size: int, batch_norms: bool) -> tuple[Tensor, Tensor]:
    """Class means of the embedding over one balanced minibatch (if it holds as many, over all
    training windows), with the model as it is and without dropout. batch_norms: BatchNorm goes by
    this batch, as in training, but learns nothing from it; else by its running statistics."""
    y = client.task.labels(client.train.target)
    rows = torch.arange(len(y))
    rows = rows if size >= len(y) else in_turn(y, client.generator("latents"))[:size]
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


def descended(
    client: Client, start: Tensor, loss: Callable[[Tensor], Tensor], lr: float, steps: int
) -> Tensor:
    """A translator after some steps of Adam, whose memory is the client's."""
    moved = start.clone().requires_grad_()
    optimizer = Adam([moved], lr)
    optimizer.recall(["translator"], client.memory)
    for _ in range(steps):
        (moved.grad,) = torch.autograd.grad(loss(moved), [moved])
        optimizer.step()
    client.memory.update(optimizer.memory(["translator"]))
    return moved.detach()


def translator(client: Client, d: int, common: bool, orthonormal: bool) -> Tensor:
    """A random matrix (d, embedding): entries N(0, 1/embedding), or orthonormal rows; the client's
    own, or common to all with that embedding."""
    size = client.card.sizes["embedding"]
    draw = client.streams.generator("P", *([] if common or orthonormal else [client.card.id]))
    drawn = torch.from_numpy(draw.standard_normal((d, size)))
    rows: Tensor = torch.linalg.qr(drawn.T)[0].T if orthonormal else drawn / size**0.5
    return rows.float().contiguous().to(client.train.target.device)


def traced(client: Client, local: Tensor, regulariser: Tensor) -> Tensor:
    """Their sum. In the first step of every tenth round the client's log gets how strongly the
    consensus pulls: the length of its slope by the model's parameters against that of the task."""
    if client.round % TRACED or diagnostics.PULL.name in client.log:
        return local + regulariser
    trained = [p for p in client.model.parameters() if p.requires_grad]
    lengths = []
    for loss in (regulariser, local):
        slopes = torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)
        squares = [float(g.square().sum()) for g in slopes if g is not None]
        lengths.append(math.sqrt(math.fsum(squares)))
    client.log[diagnostics.PULL.name] = lengths[0] / max(lengths[1], LEAST)
    return local + regulariser


def told(u: Tensor, age: Tensor, who: Tensor) -> dict[str, Tensor]:
    """The targets (1, classes, d) that there are, by class; of several pulls, which are of clients,
    none: they have no centre."""
    known = (age[0] < NEVER).nonzero().flatten().tolist() if who.tolist() == [-1] else []
    return {str(c): u[0, c] for c in known}


def pack(u: Tensor, has: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of u (..., classes, d) that `has` (..., classes) names, and `has` as bits: what
    travels."""
    bits = np.packbits(has.cpu().numpy(), axis=-1, bitorder="little")
    return u[has].contiguous(), torch.from_numpy(bits)


def unpack(rows: Tensor, bits: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The reverse; zero where there is none."""
    flags = np.unpackbits(bits.cpu().numpy(), axis=-1, count=classes, bitorder="little")
    has = torch.from_numpy(flags.astype(bool)).to(rows.device)
    u = rows.new_zeros(*has.shape, rows.shape[-1])
    u[has] = rows
    return u, has


def check(rows: Tensor, bits: Tensor, classes: int, d: int) -> None:
    """Refuses what `pack` cannot have made."""
    size = -(-classes // 8)
    if bits.dtype is not torch.uint8 or tuple(bits.shape) != (size,):
        raise CommunisError(f"has is {bits.dtype} {tuple(bits.shape)}, expected {size} bytes")
    flags = np.unpackbits(bits.numpy(), bitorder="little")
    if flags[classes:].any():
        raise CommunisError(f"has names a class beyond the {classes} that there are")
    if rows.dtype is not torch.float32 or tuple(rows.shape) != (int(flags.sum()), d):
        found, expected = tuple(rows.shape), (int(flags.sum()), d)
        raise CommunisError(f"u is {rows.dtype} {found}, expected torch.float32 {expected}")


def collected(
    old: tuple[Tensor, Tensor, Tensor], sent: Sequence[tuple[int, Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Tensor]:
    """What every client sent last: u (clients, classes, d), age and who, after a round in which
    these (client, u, has) were heard."""
    u, age, who = old
    missing = torch.tensor([i for i, *_ in sent if i not in who.tolist()], dtype=who.dtype)
    _, classes, d = u.shape
    who = torch.cat([who, missing])
    u = torch.cat([u, u.new_zeros(len(missing), classes, d)])
    age = torch.cat([age + 1, torch.full((len(missing), classes), NEVER)])
    for client, rows, has in sent:
        place = who.tolist().index(client)
        u[place] = torch.where(has[:, None], rows, u[place])
        age[place] = torch.where(has, 0.0, age[place])
    order = who.argsort()
    return u[order], age[order], who[order]

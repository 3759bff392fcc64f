"""Class prototypes: how they are formed, kept, weighed, padded and contrasted with. The mathematics
of FedAPA.

The prototypes of K clients are p (K, classes, d), zero where a client has none of a class, and
n (K, classes), the windows behind them. Equations are the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from communis.core import diagnostics
from communis.core.contract import SERVER, Card, Client, Samples
from communis.core.errors import CommunisError
from communis.core.state import State
from communis.methods.parts import latent
from communis.methods.parts.training import note_forward

PAIRS = 30  # clients whose similarities are written down pair by pair
LEAST = 1e-6  # a length below this is none
LONGEST = 1 + 1e-4  # a mean of unit vectors, rounded
MOST = 2**20  # windows of a class that noise may make of less: more than any client has


@torch.no_grad()
def class_sums(client: Client, samples: Samples, unit: bool) -> tuple[Tensor, Tensor]:
    """Sums (classes, d) and counts (classes,) of the embeddings of each class, of length 1 if
    `unit`, with the model as it is, in evaluation mode."""
    note_forward(client, samples)
    client.model.eval()
    sums = torch.zeros(client.card.sizes["classes"], client.card.sizes["embedding"])
    counts = torch.zeros(client.card.sizes["classes"])
    rows = torch.split(torch.arange(len(samples)), 512) if len(samples) else ()
    for part in map(samples.batch, rows):
        y, h = client.task.labels(part.target).cpu(), client.model(part).embedding.cpu()
        sums.index_add_(0, y, F.normalize(h) if unit else h)
        counts.index_add_(0, y, torch.ones(len(y)))
    return sums, counts


@torch.no_grad()
def feature_sums(client: Client, samples: Samples) -> tuple[State, State]:
    """Sums and counts as in `class_sums`, but of the features of each modality, over the windows
    that have it."""
    note_forward(client, samples)
    client.model.eval()
    classes = client.card.sizes["classes"]
    sums = {m: torch.zeros(classes, d) for m, d in client.model.feature_sizes.items()}
    counts = {m: torch.zeros(classes) for m in sums}
    rows = torch.split(torch.arange(len(samples)), 512) if len(samples) else ()
    for part in map(samples.batch, rows):
        y = client.task.labels(part.target).cpu()
        for m, h in client.model(part).features.items():  # zero where absent
            sums[m].index_add_(0, y, h.cpu())
            counts[m].index_add_(0, y, part.present[m].float().cpu())
    return State(sums), State(counts)


def counted(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Sums (classes, d) and counts (classes,) that privacy has noised, as windows may have them:
    counts are whole, and without windows the sum is zero. True ones keep their bits."""
    counts = counts.round().clamp(0, MOST)
    return torch.where(counts[:, None] > 0, sums, 0.0), counts


@dataclass(frozen=True)
class Library:
    """What clients sent last."""

    p: Tensor  # (K, classes, d)
    n: Tensor  # (K, classes)
    age: Tensor  # (K,) rounds since, of those in which anybody was heard
    who: Tensor  # (K,) the clients, in order

    @classmethod
    def empty(cls, classes: int, d: int) -> Library:
        none = torch.zeros(0)
        return cls(torch.zeros(0, classes, d), torch.zeros(0, classes), none, none.long())

    def heard(self, sent: Sequence[tuple[int, Tensor, Tensor, Tensor]]) -> Library:
        """A round later, with these (client, p and has as packed, n). An empty n: as told before;
        where it never was, one window a class."""
        rows = zip(self.who.tolist(), self.p, self.n, self.age + 1, strict=True)
        known = {i: (p, n, age) for i, p, n, age in rows}
        for i, packed, bits, n in sent:
            p = unpack(packed, bits, self.p.shape[1])
            has = (p.norm(dim=-1) > LEAST).float()
            told = n if len(n) else known[i][1] if i in known else has
            known[i] = p, torch.where(told > 0, told, 1.0) * has, torch.zeros(())
        order = sorted(known)
        p, n, age = (torch.stack(parts) for parts in zip(*(known[i] for i in order), strict=True))
        return Library(p, n, age, torch.tensor(order))

    def fresh(self, client: int, stale: int) -> tuple[Library, int]:
        """What is not older than so many rounds (0: all) or the client's own, and where that is; -1
        if nothing was heard of the client."""
        kept = (self.age <= (stale or math.inf)) | (self.who == client)
        whole = bool(kept.all())  # and so not copied for every client of a large fleet
        known = (
            self if whole else Library(self.p[kept], self.n[kept], self.age[kept], self.who[kept])
        )
        return known, known.who.tolist().index(client) if client in known.who else -1

    @cached_property
    def means(self) -> Tensor:
        """(classes, d): the sample-weighted mean of each class, Equation 8; 0 where nobody has
        it."""
        return means(self.p, self.n)

    @cached_property
    def padded(self) -> Tensor:
        return padded(self.p, self.n)

    @property
    def by_class(self) -> dict[str, Tensor]:
        """The means of the classes that anybody has."""
        return {str(c): self.means[c] for c in self.n.any(0).nonzero().flatten().tolist()}


def cosines(p: Tensor, i: int) -> Tensor:
    """(K, classes): s_ij^c, Equation 5; 0 where either has no prototype."""
    return F.cosine_similarity(p, p[i : i + 1], dim=-1)


def weights(p: Tensor, n: Tensor, i: int, tau: float, include_self: bool) -> Tensor:
    """(K, classes): alpha_ij^c over those who have the class, Equation 6; 0 where i has not. If a
    client is not to count for itself, it does so only where there is nobody else."""
    has = (n > 0) & (n[i] > 0)
    if not include_self:
        others = has & (torch.arange(len(n)) != i)[:, None]
        has = torch.where(others.any(0), others, has)
    scores = (cosines(p, i) / tau).masked_fill(~has, torch.finfo(p.dtype).min)
    return scores.softmax(0) * has


def means(p: Tensor, n: Tensor) -> Tensor:
    """(classes, d): the sample-weighted mean of each class, Equation 8; 0 where nobody has it."""
    return torch.einsum("kc,kcd->cd", n / n.sum(0).clamp_min(1), p)


def padded(p: Tensor, n: Tensor) -> Tensor:
    """p with the means where a client has none of a class."""
    return torch.where(n[..., None] > 0, p, means(p, n))


def equal(n: Tensor) -> Tensor:
    """(K, classes): weights by which all who have a class count alike, for everybody."""
    has = (n > 0).float()
    return has / has.sum(0).clamp_min(1)


def personal(p: Tensor, alpha: Tensor, means: Tensor) -> Tensor:
    """(classes, d): the personalised prototypes of a client with these weights, Equation 7; the
    means where it has none, Equation 8."""
    own = torch.einsum("jc,jcd->cd", alpha, p)
    return torch.where(alpha.any(0)[:, None], own, means)


def everybody(received: Tensor, p: Tensor, n: Tensor, others: Tensor) -> Tensor:
    """(K, classes, d): the prototypes of all clients, padded: one's own p, and those after the
    first set that was received. others: their n, if they came without padding."""
    if len(others):
        return padded(torch.cat([p[None], received[1:]]), torch.cat([n[None], others]))
    own = torch.where(n[:, None] > 0, p, received[0])
    return torch.cat([own[None], received[1:]])


def contrast(h: Tensor, y: Tensor, targets: Tensor, tau: float) -> Tensor:
    """(J,): how well the embeddings h (B, d) tell the prototype of their class from the others of
    the same set, by cosine, for J sets of unit vectors (J, classes, d), Equations 9 and 10. Classes
    that no set has are in no denominator; windows of such a class add nothing."""
    known = targets.any(0).any(-1)
    scores = torch.einsum("bd,jcd->bjc", F.normalize(h, eps=LEAST), targets) / tau
    logs = scores.masked_fill(~known, torch.finfo(h.dtype).min).log_softmax(-1)
    own = logs.gather(2, y[:, None, None].expand(-1, len(targets), 1))[..., 0]
    return -(own * known[y, None]).sum(0) / max(1, len(y))


def warmed(t: int, least: float, most: float, rounds: int) -> float:
    """lambda(t), Equation 11."""
    if t >= rounds:
        return most
    return least + (most - least) * (1 - math.cos(math.pi * t / rounds)) / 2


def pack(p: Tensor, sparse: bool) -> tuple[Tensor, Tensor]:
    """What travels of p (..., classes, d): all of it, or the rows that are there and a bit for
    every class that says which."""
    return latent.pack(p, p.any(-1)) if sparse else (p, torch.zeros(0, dtype=torch.uint8))


def unpack(p: Tensor, has: Tensor, classes: int) -> Tensor:
    """The reverse; without bits p is whole."""
    return latent.unpack(p, has, classes)[0] if len(has) else p


def check(p: Tensor, has: Tensor, n: Tensor, card: Card, sparse: bool) -> None:
    """Refuses what cannot be a client's prototypes: means of n unit vectors each (n may be
    empty), packed."""
    classes, d = card.sizes["classes"], card.sizes["embedding"]
    if sparse:
        latent.check(p, has, classes, d)
    elif p.dtype is not torch.float32 or tuple(p.shape) != (classes, d) or tuple(has.shape) != (0,):
        raise CommunisError(f"p is {p.dtype} {tuple(p.shape)}, expected ({classes}, {d}) alone")
    p = unpack(p, has, classes)
    if float(p.norm(dim=-1).max()) > LONGEST:
        raise CommunisError("p is longer than 1, but a prototype is a mean of unit vectors")
    if n.dtype is not torch.float32 or tuple(n.shape) not in ((0,), (classes,)):
        raise CommunisError(f"n is {n.dtype} {tuple(n.shape)}, expected ({classes},) or nothing")
    whole = bool((n == n.round()).all() and (n >= 0).all())
    if not whole or float(n.sum()) > card.samples:
        raise CommunisError(f"n are not the counts of {card.samples} windows")
    if len(n) and bool(p[n == 0].any()):
        raise CommunisError("p has a prototype of no windows")


def repaired(p: Tensor, has: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What privacy has noised, packed, as `check` takes it. True prototypes keep their bits."""
    length = p.norm(dim=-1, keepdim=True)
    p = torch.where(length > LONGEST, p / length, p)
    if len(n):
        whole, n = counted(unpack(p, has, len(n)), n)
        p, has = pack(whole, sparse=len(has) > 0)
    return p, has, n


def likeness(library: Library) -> dict[str, float]:
    """`alike`, the mean cosine over all pairs of clients and the classes that both have; in a small
    fleet also `alike/i-j` of every pair that has a class in common."""
    p, has, who = library.p, library.n > 0, library.who.tolist()
    found = {}
    if pairs := float((has.sum(0) * (has.sum(0) - 1)).sum()):
        # |sum of unit vectors|^2 = their number + twice the sum over pairs of cosines
        together = F.normalize(p.double(), dim=-1).sum(0).square().sum()
        found[diagnostics.ALIKE.name] = float(together - has.sum()) / pairs
    for i in range(len(who) if len(who) <= PAIRS else 0):
        s, common = cosines(p, i).double(), (has & has[i]).sum(1)
        for j in range(i + 1, len(who)):
            if common[j]:
                found[diagnostics.ALIKE_PAIR.of(who[i], who[j])] = float(
                    (s[j] * has[i]).sum() / common[j]
                )
    return found


def given(
    library: Library, alpha: Callable[[Library, int], Tensor], stale: int, node: int
) -> dict[str, float]:
    """`weight/i-j`, the mean of alpha_ij over the classes of i, and `moved`, the mean share of a
    class's weight that would be elsewhere if all who have it counted alike. Of everybody in a small
    fleet; a node of a graph speaks for itself alone."""
    found: dict[str, float] = {}
    moved = []
    for i in library.who.tolist() if len(library.who) <= PAIRS else ():
        if node in (SERVER, i):
            known, place = library.fresh(i, stale)
            mine = alpha(known, place).double()[:, known.n[place] > 0]
            even = (mine > 0) / (mine > 0).sum(0)
            moved.append((mine - even).abs().sum(0) / 2)
            weight = mine.mean(1) if mine.shape[1] else mine.sum(1)
            found |= {
                diagnostics.WEIGHT.of(i, j): w
                for j, w in zip(known.who.tolist(), weight.tolist(), strict=True)
            }
    shares = torch.cat(moved) if moved else torch.zeros(0)
    return found | ({diagnostics.MOVED.name: float(shares.mean())} if len(shares) else {})

"""Class prototypes: how they are computed, stored, weighted and padded, and the contrastive loss.
This is the mathematics of FedAPA.

The prototypes of K clients are p (K, classes, d), zero where a client lacks a class, and
n (K, classes) are the numbers of windows behind them. Equations are those of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from communis.core import diagnostics
from communis.core.contract import SERVER, Batch, Card, Client, Samples
from communis.core.errors import CommunisError
from communis.core.state import State
from communis.methods.parts import latent
from communis.methods.parts.training import note_forward

PAIRS = 30  # largest number of clients whose pairs are logged one by one
LEAST = 1e-6  # shorter vectors count as zero
LONGEST = 1 + 1e-4  # largest length of a mean of unit vectors, with rounding
MOST = 2**20  # largest count after privacy noise, more than the windows of any client
PART = 512  # windows per forward pass


@torch.no_grad()
def class_sums(client: Client, samples: Samples, unit: bool) -> tuple[Tensor, Tensor]:
    """Returns the sums (classes, d) and counts (classes,) of the embeddings of each class under the
    present model, in evaluation mode. unit: embeddings are normalised to length 1."""
    note_forward(client, samples)
    client.model.eval()
    sums = torch.zeros(client.card.sizes["classes"], client.card.sizes["embedding"])
    counts = torch.zeros(client.card.sizes["classes"])
    for windows in _parts(samples):
        y = client.task.labels(windows.target).cpu()
        h = client.model(windows).embedding.cpu()
        sums.index_add_(0, y, F.normalize(h) if unit else h)
        counts.index_add_(0, y, torch.ones(len(y)))
    return sums, counts


@torch.no_grad()
def feature_sums(client: Client, samples: Samples) -> tuple[State, State]:
    """Returns sums and counts as `class_sums`, but of the features of each modality, over the
    windows that have it."""
    note_forward(client, samples)
    client.model.eval()
    classes = client.card.sizes["classes"]
    sums = {m: torch.zeros(classes, d) for m, d in client.model.feature_sizes.items()}
    counts = {m: torch.zeros(classes) for m in sums}
    for windows in _parts(samples):
        y = client.task.labels(windows.target).cpu()
        for m, h in client.model(windows).features.items():  # zero where absent
            sums[m].index_add_(0, y, h.cpu())
            counts[m].index_add_(0, y, windows.present[m].float().cpu())
    return State(sums), State(counts)


def _parts(samples: Samples) -> Iterator[Batch]:
    """Yields all windows in batches."""
    if len(samples):
        for rows in torch.split(torch.arange(len(samples)), PART):
            yield samples.batch(rows)


def repaired_counts(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Returns noised sums (classes, d) and counts (classes,) as windows may have them: counts are
    whole numbers, and the sum of a class without windows is zero. True values keep their bits."""
    counts = counts.round().clamp(0, MOST)
    return torch.where(counts[:, None] > 0, sums, 0.0), counts


@dataclass(frozen=True)
class Library:
    """The last prototypes of every client."""

    p: Tensor  # (K, classes, d)
    n: Tensor  # (K, classes)
    age: Tensor  # (K,): aggregations since the prototypes were received
    who: Tensor  # (K,): the clients, in ascending order

    @classmethod
    def empty(cls, classes: int, d: int) -> Library:
        return cls(
            p=torch.zeros(0, classes, d),
            n=torch.zeros(0, classes),
            age=torch.zeros(0),
            who=torch.zeros(0).long(),
        )

    def updated(self, sent: Sequence[tuple[int, Tensor, Tensor, Tensor]]) -> Library:
        """Returns the library after a round with these messages (client, packed p, packed has, n).
        An empty n means unchanged counts, or one window per class if there are no earlier
        counts."""
        p_of = dict(zip(self.who.tolist(), self.p, strict=True))
        n_of = dict(zip(self.who.tolist(), self.n, strict=True))
        age_of = dict(zip(self.who.tolist(), self.age + 1, strict=True))
        for client, rows, bits, counts in sent:
            p = unpack(rows, bits, self.p.shape[1])
            has = (p.norm(dim=-1) > LEAST).float()
            n = counts if len(counts) else n_of.get(client, has)
            p_of[client] = p
            n_of[client] = torch.where(n > 0, n, 1.0) * has
            age_of[client] = torch.zeros(())
        who = sorted(p_of)
        return Library(
            p=torch.stack([p_of[client] for client in who]),
            n=torch.stack([n_of[client] for client in who]),
            age=torch.stack([age_of[client] for client in who]),
            who=torch.tensor(who),
        )

    def fresh(self, client: int, stale: int) -> tuple[Library, int]:
        """Returns the client's own prototypes and those that are at most `stale` rounds old (0: all
        prototypes), and the index of the client in them, -1 if it has none."""
        kept = (self.age <= (stale or math.inf)) | (self.who == client)
        library = self
        if not bool(kept.all()):  # avoids a copy for every client of a large fleet
            library = Library(self.p[kept], self.n[kept], self.age[kept], self.who[kept])
        who = library.who.tolist()
        return library, who.index(client) if client in who else -1

    @cached_property
    def means(self) -> Tensor:
        """(classes, d): the sample-weighted mean of each class (Equation 8), zero for a class that
        no client has."""
        return means(self.p, self.n)

    @cached_property
    def padded(self) -> Tensor:
        """(K, classes, d): p with the means for classes that a client lacks."""
        return padded(self.p, self.n)

    @property
    def by_class(self) -> dict[str, Tensor]:
        """The means of the classes that some client has."""
        return {str(c): self.means[c] for c in self.n.any(0).nonzero().flatten().tolist()}


def cosines(p: Tensor, i: int) -> Tensor:
    """Returns s_ij^c (K, classes; Equation 5), zero if one of both has no prototype."""
    return F.cosine_similarity(p, p[i : i + 1], dim=-1)


def weights(p: Tensor, n: Tensor, i: int, tau: float, include_self: bool) -> Tensor:
    """Returns alpha_ij^c (K, classes; Equation 6) over the clients that have the class, zero for
    classes that client i lacks. Without include_self, the client's own prototype only counts if no
    other client has the class."""
    has = (n > 0) & (n[i] > 0)
    if not include_self:
        others = has & (torch.arange(len(n)) != i)[:, None]
        has = torch.where(others.any(0), others, has)
    scores = (cosines(p, i) / tau).masked_fill(~has, torch.finfo(p.dtype).min)
    return scores.softmax(0) * has


def means(p: Tensor, n: Tensor) -> Tensor:
    """Returns the sample-weighted mean (classes, d) of each class (Equation 8), zero for a class
    that no client has."""
    return torch.einsum("kc,kcd->cd", n / n.sum(0).clamp_min(1), p)


def padded(p: Tensor, n: Tensor) -> Tensor:
    """Returns p with the means for classes that a client lacks."""
    return torch.where(n[..., None] > 0, p, means(p, n))


def equal(n: Tensor) -> Tensor:
    """Returns weights (K, classes) that are equal for all clients that have the class."""
    has = (n > 0).float()
    return has / has.sum(0).clamp_min(1)


def personal(p: Tensor, alpha: Tensor, means: Tensor) -> Tensor:
    """Returns the personalised prototypes (classes, d) of a client with these weights (Equation 7),
    and the means for classes that it lacks (Equation 8)."""
    own = torch.einsum("jc,jcd->cd", alpha, p)
    return torch.where(alpha.any(0)[:, None], own, means)


def of_all_clients(received: Tensor, p: Tensor, n: Tensor, others: Tensor) -> Tensor:
    """Returns the padded prototypes (K, classes, d) of all clients: the client's own p, and the
    received sets after the first. others: the counts n of the other clients if they were received
    without padding, else empty."""
    if len(others):
        return padded(torch.cat([p[None], received[1:]]), torch.cat([n[None], others]))
    own = torch.where(n[:, None] > 0, p, received[0])
    return torch.cat([own[None], received[1:]])


def contrast(h: Tensor, y: Tensor, targets: Tensor, tau: float) -> Tensor:
    """Returns the contrastive loss (J,) of the embeddings h (B, d) for each of J sets of unit
    vectors (J, classes, d), by cosine similarity (Equations 9 and 10). The positive is the
    prototype of the window's class, the negatives are the other prototypes of the set. Classes that
    no set has are in no denominator; windows of such a class add zero."""
    known = targets.any(0).any(-1)
    scores = torch.einsum("bd,jcd->bjc", F.normalize(h, eps=LEAST), targets) / tau
    logs = scores.masked_fill(~known, torch.finfo(h.dtype).min).log_softmax(-1)
    own = logs.gather(2, y[:, None, None].expand(-1, len(targets), 1))[..., 0]
    return -(own * known[y, None]).sum(0) / max(1, len(y))


def warmup_weight(t: int, least: float, most: float, rounds: int) -> float:
    """Returns lambda(t) (Equation 11)."""
    if t >= rounds:
        return most
    return least + (most - least) * (1 - math.cos(math.pi * t / rounds)) / 2


def pack(p: Tensor, sparse: bool) -> tuple[Tensor, Tensor]:
    """Returns the payload of p (..., classes, d): all rows and no bits, or if sparse the existing
    rows and one bit per class."""
    return latent.pack(p, p.any(-1)) if sparse else (p, torch.zeros(0, dtype=torch.uint8))


def unpack(p: Tensor, has: Tensor, classes: int) -> Tensor:
    """Reverses `pack`: returns p with all rows."""
    return latent.unpack(p, has, classes)[0] if len(has) else p


def check(p: Tensor, has: Tensor, n: Tensor, card: Card, sparse: bool) -> None:
    """Refuses a payload that cannot be a client's packed prototypes, each the mean of n unit
    vectors. n may be empty."""
    classes = card.sizes["classes"]
    d = card.sizes["embedding"]
    if sparse:
        latent.check(p, has, classes, d)
    else:
        if p.dtype is not torch.float32 or tuple(p.shape) != (classes, d):
            raise CommunisError(
                f"p is {p.dtype} {tuple(p.shape)}, expected torch.float32 {(classes, d)}"
            )
        if tuple(has.shape) != (0,):
            raise CommunisError(f"has is {has.dtype} {tuple(has.shape)}, expected no bits")
    p = unpack(p, has, classes)
    if float(p.norm(dim=-1).max()) > LONGEST:
        raise CommunisError("p has a row longer than 1, but a prototype is a mean of unit vectors")
    if n.dtype is not torch.float32 or tuple(n.shape) not in ((0,), (classes,)):
        raise CommunisError(
            f"n is {n.dtype} {tuple(n.shape)}, expected torch.float32 {(classes,)} or (0,)"
        )
    integers = bool((n == n.round()).all() and (n >= 0).all())
    if not integers or float(n.sum()) > card.samples:
        raise CommunisError(
            f"n must be whole numbers of at least 0 with a sum of at most {card.samples}, the "
            "client's number of windows"
        )
    if len(n) and bool(p[n == 0].any()):
        raise CommunisError("p has a prototype for a class whose count in n is 0")


def repaired(p: Tensor, has: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the noised payload (p, has, n), projected onto what `check` accepts. True prototypes
    keep their bits."""
    length = p.norm(dim=-1, keepdim=True)
    p = torch.where(length > LONGEST, p / length, p)
    if len(n):
        dense, n = repaired_counts(unpack(p, has, len(n)), n)
        p, has = pack(dense, sparse=len(has) > 0)
    return p, has, n


def similarity_notes(library: Library) -> dict[str, float]:
    """Returns `alike`, the mean cosine over all pairs of clients and the classes that both have,
    and in a small fleet `alike/i-j` for every pair with a common class."""
    p = library.p
    has = library.n > 0
    who = library.who.tolist()
    notes = {}
    pairs = float((has.sum(0) * (has.sum(0) - 1)).sum())
    if pairs:
        # |sum of unit vectors|^2 = their number + twice the sum of cosines over pairs.
        square = F.normalize(p.double(), dim=-1).sum(0).square().sum()
        notes[diagnostics.ALIKE.name] = float(square - has.sum()) / pairs
    if len(who) > PAIRS:
        return notes
    for i in range(len(who)):
        s = cosines(p, i).double()
        common = (has & has[i]).sum(1)
        for j in range(i + 1, len(who)):
            if common[j]:
                mean = float((s[j] * has[i]).sum() / common[j])
                notes[diagnostics.ALIKE_PAIR.of(who[i], who[j])] = mean
    return notes


def weight_notes(
    library: Library, alpha: Callable[[Library, int], Tensor], stale: int, node: int
) -> dict[str, float]:
    """Returns `weight/i-j`, the mean of alpha_ij over the classes of i, and `moved`, the mean share
    of a class's weight that differs from equal weights of the clients that have the class. A server
    logs all clients of a small fleet, a node of a graph logs only its own client."""
    notes: dict[str, float] = {}
    if len(library.who) > PAIRS:
        return notes
    moved = []
    for i in library.who.tolist():
        if node not in (SERVER, i):
            continue
        fresh, place = library.fresh(i, stale)
        alpha_i = alpha(fresh, place).double()[:, fresh.n[place] > 0]
        even = (alpha_i > 0) / (alpha_i > 0).sum(0)
        moved.append((alpha_i - even).abs().sum(0) / 2)
        mean = alpha_i.mean(1) if alpha_i.shape[1] else alpha_i.sum(1)
        for j, weight in zip(fresh.who.tolist(), mean.tolist(), strict=True):
            notes[diagnostics.WEIGHT.of(i, j)] = weight
    shares = torch.cat(moved) if moved else torch.zeros(0)
    if len(shares):
        notes[diagnostics.MOVED.name] = float(shares.mean())
    return notes

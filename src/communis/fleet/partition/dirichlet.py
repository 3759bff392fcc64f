"""Dirichlet partition: clients with skewed labels, but no systematically different sizes."""

from __future__ import annotations

import numpy as np

from communis.core.arrays import Array
from communis.fleet.partition.shares import deal


def by_label(
    label: Array, split: Array, clients: int, alpha: float, least: int, rng: np.random.Generator
) -> Array:
    """Returns (N,) int64: the client of each window.

    Every client draws its label distribution from a symmetric Dirichlet(alpha). The windows of a
    label are divided in proportion to the clients' probabilities of it. alpha -> infinity: all
    clients have the same distribution; alpha -> 0: each client has a single label.
    """
    _, label = np.unique(label, return_inverse=True)  # labels that do not occur take no share
    labels = int(label.max()) + 1
    return deal(label, split, lambda: label_shares(labels, clients, alpha, rng), least, rng)


def label_shares(labels: int, clients: int, alpha: float, rng: np.random.Generator) -> Array:
    """Returns (labels, clients): the share of each label's windows that each client gets.

    It is computed in logarithms, since Gamma(alpha) = Gamma(alpha + 1) U^(1 / alpha) underflows for
    small alpha.
    """
    shape = (labels, clients)
    gamma = np.log(rng.standard_gamma(alpha + 1, shape)) + np.log1p(-rng.random(shape)) / alpha
    per_client = gamma - np.logaddexp.reduce(gamma, axis=0, keepdims=True)  # sums to 1 per client
    share: Array = np.exp(per_client - np.logaddexp.reduce(per_client, axis=1, keepdims=True))
    return share

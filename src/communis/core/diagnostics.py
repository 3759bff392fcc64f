"""The diagnostics in a run's log: numbers that clients and aggregators record besides scores and
bytes. A name that one part of the library writes and another reads is declared here; a method
declares a name that nothing else reads in its own file. The names are those on disk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnostic:
    name: str  # in the log; if it ends in "/", a subject follows, such as a group or a client
    unit: str
    meaning: str

    def of(self, *subject: object) -> str:
        """The name in the log for a subject, such as a group, or for a pair of clients."""
        return self.name + "-".join(map(str, subject))


# Training and messages.
LOSS = Diagnostic("loss", "of the task", "mean training loss; part of the record, not of the log")
LOST = Diagnostic("lost", "1", "the client's message was lost on its way")

# Privacy.
PRIVACY_MU = Diagnostic("privacy/mu", "mu", "cost of the round for the client")
PRIVACY_CLIPPED = Diagnostic(
    "privacy/clipped", "share", "of clipped fields (local) or messages (central)"
)
PRIVACY_Z = Diagnostic("privacy/z", "ratio", "noise of the sum over the clipping bound")
PRIVACY_Q = Diagnostic("privacy/q", "probability", "with which each client is sampled")
PRIVACY_CLIP = Diagnostic("privacy/clip", "length", "the clipping bound of the round")

# Elastic training: which groups of parameters a client trains.
TRAINED = Diagnostic("trained/", "1", "the client trained this group in this round")
BUDGET = Diagnostic("budget/", "groups", "that this client has time to train")
DIVERGENCE = Diagnostic("divergence/", "distance", "between clients in this group")
SPREAD = Diagnostic("spread/", "distance", "the same, for methods that do not compute it")

# The work of training, from which the device clock computes seconds.
WINDOWS = Diagnostic("windows", "windows", "in forward passes")
GROUP_WINDOWS = Diagnostic("group_windows", "windows x groups", "in backward passes")
FLOPS_FORWARD = Diagnostic("flops_forward", "FLOP", "of forward passes")
FLOPS_BACKWARD = Diagnostic("flops_backward", "FLOP", "of backward passes")

# A common latent space of class vectors.
DISTANCE = Diagnostic("latent/distance", "distance", "from a client's class vectors to the targets")
SEPARATION = Diagnostic(
    "latent/separation", "distance", "from a client's class vectors to their mean"
)
TARGET_SEPARATION = Diagnostic("latent/target_separation", "distance", "the same for the targets")
PULL = Diagnostic("latent/pull", "ratio", "gradient of the consensus over that of the task")

# A measure of every window, which `predict` returns as a view: scored as `mean@sigma_f`.
UNCERTAINTY = Diagnostic("sigma_f", "sigma", "of a prediction, over the sensors of its window")

# The similarity of clients, as a server sees it.
ALIKE = Diagnostic("alike", "cosine", "between prototypes of two clients, mean over all pairs")
ALIKE_PAIR = Diagnostic("alike/", "cosine", "between the prototypes of this pair of clients")
WEIGHT = Diagnostic("weight/", "share", "of the first client's prototypes that is the second's")
MOVED = Diagnostic("moved", "share", "of the weight that equal weights would place elsewhere")

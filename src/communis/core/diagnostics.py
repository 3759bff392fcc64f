"""What clients and aggregators write into a run's log for the report: declared once, for those who
write and those who read. The names are those on disk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnostic:
    name: str  # in the log; if it ends in "/", what it is about follows
    unit: str
    meaning: str

    def of(self, *about: object) -> str:
        """The name in the log of what is said about this, or about a pair."""
        return self.name + "-".join(map(str, about))


# Training that is elastic: who trains what.
TRAINED = Diagnostic("trained/", "1", "this client trained that group in this round")
BUDGET = Diagnostic("budget/", "groups", "how many groups that client has time to train")
DIVERGENCE = Diagnostic("divergence/", "distance", "how far clients differ in that group")
SPREAD = Diagnostic("spread/", "distance", "the same, for methods that do not ask themselves")

# Training, as the device clock reckons it.
WINDOWS = Diagnostic("windows", "windows", "passed forward through the model")
GROUP_WINDOWS = Diagnostic("group_windows", "windows x groups", "passed backward")
FLOPS_FORWARD = Diagnostic("flops_forward", "FLOP", "of forward passes")
FLOPS_BACKWARD = Diagnostic("flops_backward", "FLOP", "of backward passes")

# A common latent space of class vectors.
DISTANCE = Diagnostic("latent/distance", "distance", "of a client's class vectors to the targets")
SEPARATION = Diagnostic(
    "latent/separation", "distance", "of a client's class vectors to their mean"
)
TARGET_SEPARATION = Diagnostic("latent/target_separation", "distance", "the same of the targets")
PULL = Diagnostic("latent/pull", "ratio", "gradient of the consensus over that of the task")

# Who learns from whom, of a server.
ALIKE = Diagnostic("alike", "cosine", "of the prototypes of two clients, mean over all pairs")
ALIKE_PAIR = Diagnostic("alike/", "cosine", "the same of one pair")
WEIGHT = Diagnostic("weight/", "share", "of the one client's prototypes that come from the other")
MOVED = Diagnostic("moved", "share", "of weight that would be elsewhere if all counted alike")

"""What a run may promise its clients: what left them, what of it was covered and what its rounds
add up to - or plainly that it is not differentially private (DP), and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from communis.core.extras import EXTRAS, command
from communis.exchange.privacy import gaussian
from communis.exchange.privacy.digits import upward
from communis.results.account import Part, PrivacyAccount, Rounds, Spent, books, epsilon_of
from communis.results.finished import Finished

UNIT = "a client with all of its windows; a person behind several clients is not covered"
REPLACED = "one client's data replaced by any other"
ADJACENCY = {"local": REPLACED, "paper": REPLACED, "central": "one client more or less"}
UNSAMPLED = "none assumed: who receives messages sees who takes part"
OLD = "no record of privacy: made by an older version; treat as not DP"
PAPER = (
    "theta_M (operator) noised only; per round; sensitivity taken as C; NO client-level DP for the "
    "whole upload"
)
CONDITIONS = (
    "The noise of a simulation comes from the run's seed, and who knows the seed can take it away: "
    "a deployment must draw it in secret, {where}.",
    "Noise in floating point is not exactly Gaussian; the number does not account for that.",
    "Losses, scores, curves and numbers of windows are what the simulation shows of clients' data: "
    "they were never sent; to publish them, or to choose a round by them, is not covered.",
    "The number of clients is taken for public, and of every client that it has training windows, "
    "which sensors, model and device it has, when it is there, how long it takes (which may tell "
    "how many windows it has) and whether it fails; so are the task and its classes.",
    "Weights to start from must not depend on clients' data, and how windows are cut and prepared "
    "not on those of other clients.",
    "The number is of this run alone: choosing settings by other runs on the same data, or "
    "releasing these too, is not accounted for.",
)
TRUST = (
    "The server is trusted: it sees every message in clear, tells nobody who was drawn and stops "
    "when the budget is spent."
)
BUDGET = (
    "Every device must count its own budget and stay silent when it is spent: the simulation "
    "counts for all of them, but a server that is not trusted may ask more often than it says."
)
LARGE = 10.0  # from here on an epsilon is a formality: e^10 is 22,000
POINTS = 24  # of a course, at most


@dataclass(frozen=True)
class Operator:
    """What the noised block of UMEDA's own mechanism comes to by itself, all rounds together."""

    at_c: float  # epsilon, with the paper's sensitivity C
    at_2c: float  # with that of replacing a client's data
    claimed: float  # per round


@dataclass(frozen=True)
class Verdict:
    mode: str
    private: bool
    line: str  # all of it in one sentence
    epsilon: float = math.nan  # of the client that spent most; NaN: there is no promise
    delta: float = math.nan
    reasons: tuple[str, ...] = ()  # why there is none
    conditions: tuple[str, ...] = ()  # under which it holds
    sampling: str = ""
    rounds: Rounds | None = None
    table: tuple[Part, ...] = ()  # what left
    per_client: tuple[Spent, ...] = ()
    stopped: int = 0  # clients whose budget was spent before the end
    operator: Operator | None = None

    @property
    def brief(self) -> str:
        if not self.private:
            return "not DP"
        return promise(self.epsilon, self.delta) if self.table else "nothing leaves"

    @property
    def facts(self) -> dict[str, str]:
        """Everything that belongs to the promise, in words."""
        r, o = self.rounds, self.operator
        found = {"mode": self.mode, "adjacency": ADJACENCY.get(self.mode, "")}
        found |= {"unit": UNIT if self.mode in ADJACENCY else "", "sampling": self.sampling}
        if r is not None:
            took = f"a client took part in {r.most} at most, {r.median:g} in the median"
            found["rounds"] = f"{r.done} of {r.planned}; {took}"
        if self.private and self.table:
            found |= {"delta": str(self.delta), "epsilon": upward(self.epsilon)}
            if self.per_client:
                typical = upward(median(one.epsilon for one in self.per_client))
                found["epsilon"] += f" at most, {typical} in the median of those who took part"
        if self.stopped:
            found["budget"] = f"{self.stopped} clients stopped because theirs was spent"
        if o is not None:
            found["operator alone"] = (
                f"epsilon {upward(o.at_c)} at sensitivity C, {upward(o.at_2c)} at 2 C, delta "
                f"{self.delta}, all rounds together (claimed: {upward(o.claimed)} per round)"
            )
        return {key: text for key, text in found.items() if text}


def verdict(run: Finished) -> Verdict:
    """Of a run as far as it has come."""
    found = books(run)
    if found is None:
        return Verdict("unknown", private=False, line=f"not DP: {OLD}", reasons=(OLD,))
    reasons = _reasons(found)
    base = Verdict(
        found.mode,
        private=not reasons,
        line=f"not DP: {'; '.join(reasons)}",
        reasons=tuple(reasons),
        rounds=found.rounds,
        table=found.parts,
    )
    if not found.parts:
        nothing = replace(base, line="nothing leaves the clients", epsilon=0.0, delta=0.0)
        return base if reasons else nothing
    if found.mode == "none":
        return base
    base = replace(base, delta=found.delta)
    return _central(found, base) if found.mode == "central" else _own(found, base)


def course(run: Finished) -> dict[int, float]:
    """The largest epsilon after rounds, the last among them; empty where nothing is promised."""
    found = books(run)
    if found is None or not found.parts or not verdict(run).private:
        return {}
    rounds = [record.round for record in run.records]
    step = math.ceil(len(rounds) / POINTS)
    return {round: found.epsilon(until=round) for round in rounds[::-step][::-1]}


def worst(found: Sequence[Verdict]) -> Verdict:
    """What holds for all of several runs: the weakest of their verdicts."""
    return max(found, key=lambda v: (not v.private, v.epsilon if v.private else len(v.reasons)))


def promise(epsilon: float, delta: float) -> str:
    return f"epsilon {upward(epsilon)} at delta {delta}"


def listed(parts: Sequence[Part]) -> str:
    """Arrays in a few words."""
    fields = ", ".join(dict.fromkeys(part.field for part in parts))
    tensors, numbers = sum(p.tensors for p in parts), sum(p.numbers for p in parts)
    return f"{fields} ({tensors} tensors, {numbers:,} numbers)"


def _central(found: PrivacyAccount, base: Verdict) -> Verdict:
    qs = [q for q, _ in found.released.values()]
    ends = dict.fromkeys(f"{q:g}" for q in (min(qs, default=0.0), max(qs, default=0.0)))
    base = replace(base, sampling=f"Poisson, q = {' to '.join(ends)}")
    if base.reasons:
        return base
    if not EXTRAS["privacy"].installed:
        why = f"the number of a central run needs the extra privacy: {command('privacy')}"
        return replace(base, private=False, line=f"no verdict: {why}", reasons=(why,))
    epsilon = found.epsilon()
    if math.isinf(epsilon):
        why = "the noise is too little for any number"
        return replace(base, private=False, line=f"not DP: {why}", reasons=(why,))
    line = (
        f"{_so_far(found)}{promise(epsilon, base.delta)} for every client with all of its "
        f"windows, if the server is trusted ({ADJACENCY['central']}; {base.sampling}, "
        f"{found.rounds.done} rounds){_formality(epsilon)}"
    )
    conditions = (TRUST, *(text.format(where="at the server") for text in CONDITIONS))
    return replace(base, line=line, epsilon=epsilon, conditions=conditions)


def _own(found: PrivacyAccount, base: Verdict) -> Verdict:
    """Noise on the device: local, and the paper's."""
    spent = tuple(found.clients)
    base = replace(base, sampling=UNSAMPLED, per_client=spent, stopped=found.stopped)
    most = found.epsilon()
    if found.mode == "paper" and spent:
        half = epsilon_of(max(one.mu for one in spent) / 2, found.delta)
        base = replace(base, operator=Operator(half, most, _claimed(found)))
        alone = f"the operator alone: {base.facts['operator alone']}"
        return replace(base, line=f"{_so_far(found)}{base.line}; {alone}")
    if base.reasons:
        return base
    line = (
        f"{_so_far(found)}{promise(most, base.delta)} for every client with all of its "
        f"windows, whoever receives its messages ({REPLACED}; {found.rounds.most} rounds at most)"
        f"{_formality(most)}"
    )
    conditions = (BUDGET, *(text.format(where="on the device") for text in CONDITIONS))
    return replace(base, line=line, epsilon=most, conditions=conditions)


def _claimed(found: PrivacyAccount) -> float:
    """Epsilon of one round by the paper's own formula."""
    noise = found.settings["noise"]
    if not noise:
        return float(found.settings["epsilon"])
    return gaussian.classical_sigma(1.0, 1.0, found.delta) / float(noise)


def _so_far(found: PrivacyAccount) -> str:
    done, planned = found.rounds.done, found.rounds.planned
    when = "all that may be spent, after" if found.over else "so far, in"
    return f"{when} {done} of {planned} rounds: " if done < planned else ""


def _formality(epsilon: float) -> str:
    return ": a formality, so large an epsilon protects hardly anything" * (epsilon > LARGE)


def _reasons(found: PrivacyAccount) -> list[str]:
    """Why there is no promise, the gravest first; none: there is one."""
    reasons = [PAPER] if found.mode == "paper" else []
    reasons += found.account["leaks"]
    if not found.parts:
        unread = any(record.bytes_up for record in found.run.records) and not reasons
        return [*reasons, *["something left the clients, but nothing of it could be read"] * unread]
    if found.mode == "none":
        return [*reasons, "everything left in clear"]
    if found.mode != "central" and found.settings["kappa"] < 1:
        kappa = found.settings["kappa"]
        reasons.append(f"kappa = {kappa:g}: less noise outside of the subspace than is claimed")
    by_why: dict[str, list[Part]] = {}
    for part in found.parts:
        if not part.covered:
            by_why.setdefault(part.why, []).append(part)
    reasons += [f"{listed(parts)} left uncovered: {why}" for why, parts in by_why.items()]
    if lost := found.missing:
        named = ", ".join(map(str, lost[:5])) + " ..." * (len(lost) > 5)
        reasons.append(f"the log does not say what round {named} cost")
    return reasons

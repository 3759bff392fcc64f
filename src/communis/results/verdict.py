"""The verdict on the privacy of a run: what left the clients, which parts of it noise covers, and
the epsilon of all rounds; or that the run is not differentially private (DP), and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from communis.core.extras import EXTRAS, command
from communis.exchange.privacy import gaussian
from communis.exchange.privacy.digits import upward
from communis.results.account import ClientSpending, Part, PrivacyAccount, Rounds, account_of
from communis.results.finished import Finished

UNIT = "a client with all of its windows; a person behind several clients is not covered"
REPLACED = "one client's data replaced by any other"
ADJACENCY = {"local": REPLACED, "paper": REPLACED, "central": "one client more or less"}
UNSAMPLED = "none assumed: who receives messages sees who takes part"
OLD = "no record of privacy: made by an older version; treat as not DP"
PAPER = (
    "only {field} noised; per round; sensitivity taken as C; NO client-level DP for the whole "
    "upload"
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
LARGE = 10.0  # a larger epsilon is a formality: e^10 is 22,000
POINTS = 24  # rounds of a course, at most


@dataclass(frozen=True)
class NoisedField:
    """The epsilon of the one field that a paper's own mechanism noises, taken alone."""

    name: str
    at_c: float  # of all rounds together, with the paper's sensitivity C
    at_2c: float  # of all rounds together, with the sensitivity of replacing a client's data
    claimed: float  # per round, by the paper's formula


@dataclass(frozen=True)
class Verdict:
    """What a run may promise its clients."""

    mode: str
    private: bool
    line: str  # the verdict in one sentence
    epsilon: float = math.nan  # of the client that spent most; NaN without a promise
    delta: float = math.nan
    reasons: tuple[str, ...] = ()  # why there is no promise
    conditions: tuple[str, ...] = ()  # under which the promise holds
    sampling: str = ""
    rounds: Rounds | None = None
    table: tuple[Part, ...] = ()  # what left the clients
    per_client: tuple[ClientSpending, ...] = ()
    stopped: int = 0  # clients whose budget was spent before the end
    noised: NoisedField | None = None  # with mode = "paper"

    @property
    def brief(self) -> str:
        if not self.private:
            return "not DP"
        return promise(self.epsilon, self.delta) if self.table else "nothing leaves"

    @property
    def median_epsilon(self) -> float:
        """Of the clients that took part; NaN where epsilon is not counted by client."""
        return median(client.epsilon for client in self.per_client) if self.per_client else math.nan

    @property
    def facts(self) -> dict[str, str]:
        """The details of the promise, in words."""
        facts = {
            "mode": self.mode,
            "adjacency": ADJACENCY.get(self.mode, ""),
            "unit": UNIT if self.mode in ADJACENCY else "",
            "sampling": self.sampling,
        }
        rounds = self.rounds
        if rounds is not None:
            took = f"a client took part in {rounds.most} at most, {rounds.median:g} in the median"
            facts["rounds"] = f"{rounds.done} of {rounds.planned}; {took}"
        if self.private and self.table:
            facts["delta"] = str(self.delta)
            facts["epsilon"] = upward(self.epsilon)
            if self.per_client:
                typical = upward(self.median_epsilon)
                facts["epsilon"] += f" at most, {typical} in the median of those who took part"
        if self.stopped:
            facts["budget"] = f"{self.stopped} clients stopped because theirs was spent"
        noised = self.noised
        if noised is not None:
            facts[f"{noised.name} alone"] = (
                f"epsilon {upward(noised.at_c)} at sensitivity C, {upward(noised.at_2c)} at 2 C, "
                f"delta {self.delta}, all rounds together (claimed: {upward(noised.claimed)} per "
                "round)"
            )
        return {key: text for key, text in facts.items() if text}


def privacy_verdict(run: Finished) -> Verdict:
    """The verdict on the rounds that a run has done."""
    account = account_of(run)
    if account is None:
        return Verdict("unknown", private=False, line=f"not DP: {OLD}", reasons=(OLD,))
    reasons = _reasons(account)
    base = Verdict(
        account.mode,
        private=not reasons,
        line=f"not DP: {'; '.join(reasons)}",
        reasons=tuple(reasons),
        rounds=account.rounds,
        table=account.parts,
    )
    if not account.parts:
        nothing = replace(base, line="nothing leaves the clients", epsilon=0.0, delta=0.0)
        return base if reasons else nothing
    if account.mode == "none":
        return base
    base = replace(base, delta=account.delta)
    return _central(account, base) if account.mode == "central" else _own(account, base)


def epsilon_by_round(run: Finished) -> dict[int, float]:
    """The largest epsilon of a client after at most POINTS rounds, of which the last is one; empty
    where nothing is promised."""
    account = account_of(run)
    if account is None or not account.parts or not privacy_verdict(run).private:
        return {}
    rounds = [record.round for record in run.records]
    step = math.ceil(len(rounds) / POINTS)
    shown = rounds[::-step]  # backwards from the last one
    return {round: account.epsilon(until=round) for round in reversed(shown)}


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The weakest of the verdicts on several runs, which holds for all of them."""
    return max(verdicts, key=_weakness)


def _weakness(judgement: Verdict) -> tuple[bool, float]:
    if judgement.private:
        return False, judgement.epsilon
    return True, len(judgement.reasons)


def promise(epsilon: float, delta: float) -> str:
    return f"epsilon {upward(epsilon)} at delta {delta}"


def listed(parts: Sequence[Part]) -> str:
    """The fields of parts of a message, and how many tensors and numbers these have."""
    fields = ", ".join(dict.fromkeys(part.field for part in parts))
    tensors = sum(part.tensors for part in parts)
    numbers = sum(part.numbers for part in parts)
    return f"{fields} ({tensors} tensors, {numbers:,} numbers)"


def _central(account: PrivacyAccount, base: Verdict) -> Verdict:
    rates = [q for q, _ in account.released.values()]
    ends = (min(rates, default=0.0), max(rates, default=0.0))
    shown = dict.fromkeys(f"{rate:g}" for rate in ends)
    base = replace(base, sampling=f"Poisson, q = {' to '.join(shown)}")
    if base.reasons:
        return base
    if not EXTRAS["privacy"].installed:
        why = f"the number of a central run needs the extra privacy: {command('privacy')}"
        return replace(base, private=False, line=f"no verdict: {why}", reasons=(why,))
    epsilon = account.epsilon()
    if math.isinf(epsilon):
        why = "the noise is too little for any number"
        return replace(base, private=False, line=f"not DP: {why}", reasons=(why,))
    line = (
        f"{_so_far(account)}{promise(epsilon, base.delta)} for every client with all of its "
        f"windows, if the server is trusted ({ADJACENCY['central']}; {base.sampling}, "
        f"{account.rounds.done} rounds){_formality(epsilon)}"
    )
    conditions = (TRUST, *(text.format(where="at the server") for text in CONDITIONS))
    return replace(base, line=line, epsilon=epsilon, conditions=conditions)


def _own(account: PrivacyAccount, base: Verdict) -> Verdict:
    """The verdict on noise that is added on the device: the modes local and paper."""
    spent = tuple(account.clients)
    base = replace(base, sampling=UNSAMPLED, per_client=spent, stopped=account.stopped)
    most = account.epsilon()
    if account.mode == "paper" and spent:
        half = gaussian.epsilon_of(max(client.mu for client in spent) / 2, account.delta)
        name = _noised_fields(account)
        base = replace(base, noised=NoisedField(name, half, most, _claimed(account)))
        alone = f"{name} alone"
        line = f"{_so_far(account)}{base.line}; {alone}: {base.facts[alone]}"
        return replace(base, line=line)
    if base.reasons:
        return base
    line = (
        f"{_so_far(account)}{promise(most, base.delta)} for every client with all of its "
        f"windows, whoever receives its messages ({REPLACED}; {account.rounds.most} rounds at most)"
        f"{_formality(most)}"
    )
    conditions = (BUDGET, *(text.format(where="on the device") for text in CONDITIONS))
    return replace(base, line=line, epsilon=most, conditions=conditions)


def _noised_fields(account: PrivacyAccount) -> str:
    """Returns the fields of the message that a paper's own mechanism noised."""
    names = dict.fromkeys(part.field for part in account.parts if part.covered)
    return " and ".join(names) or "one field"


def _claimed(account: PrivacyAccount) -> float:
    """The epsilon of one round by the paper's own formula."""
    noise = account.settings["noise"]
    if not noise:
        return float(account.settings["epsilon"])
    return gaussian.classical_sigma(1.0, 1.0, account.delta) / float(noise)


def _so_far(account: PrivacyAccount) -> str:
    done, planned = account.rounds.done, account.rounds.planned
    when = "all that may be spent, after" if account.over else "so far, in"
    return f"{when} {done} of {planned} rounds: " if done < planned else ""


def _formality(epsilon: float) -> str:
    return ": a formality, so large an epsilon protects hardly anything" * (epsilon > LARGE)


def _reasons(account: PrivacyAccount) -> list[str]:
    """Why there is no promise, the gravest reason first; empty if there is one."""
    reasons = []
    if account.mode == "paper":
        reasons.append(PAPER.format(field=_noised_fields(account)))
    reasons += account.account["leaks"]
    if not account.parts:
        sent = any(record.bytes_up for record in account.run.records)
        if sent and not reasons:
            return ["something left the clients, but nothing of it could be read"]
        return reasons
    if account.mode == "none":
        return [*reasons, "everything left in clear"]
    if account.mode != "central" and account.settings["kappa"] < 1:
        kappa = account.settings["kappa"]
        reasons.append(f"kappa = {kappa:g}: less noise outside of the subspace than is claimed")
    by_why: dict[str, list[Part]] = {}
    for part in account.parts:
        if not part.covered:
            by_why.setdefault(part.why, []).append(part)
    reasons += [f"{listed(parts)} left uncovered: {why}" for why, parts in by_why.items()]
    if account.outdated:
        reasons.append("privacy.json is an older copy: more left than it names")
    if account.missing:
        shown = ", ".join(map(str, account.missing[:5]))
        more = " ..." if len(account.missing) > 5 else ""
        reasons.append(f"the log does not say what round {shown}{more} cost")
    return reasons

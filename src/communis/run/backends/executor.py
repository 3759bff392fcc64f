"""The client's side of a round: every backend, in whichever process or device, ends up here."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from communis.core import diagnostics, disk
from communis.core.contract import (
    AfterExchange,
    Batch,
    Client,
    DownMessage,
    Prediction,
    Samples,
    Score,
    Task,
    UpMessage,
)
from communis.core.names import MOST_FREQUENT, NEWCOMERS
from communis.core.pooled import is_count
from communis.core.state import State
from communis.exchange.messages import PRIVATE_STATE, Answer, Ask, ScoreColumns
from communis.exchange.privacy.guard import Guard
from communis.exchange.wire import (
    NOT_FINITE,
    Received,
    encode,
    flatten,
    load,
    not_finite,
    payload_types,
    receive,
    unflatten,
)
from communis.fleet.clients import FleetClients
from communis.fleet.fleet import AnyMethod
from communis.methods.parts.together import group_of, train_together
from communis.methods.parts.training import Recipe

EVAL_BATCH = 512
FIRST = "first message/"  # prefix of an attacker's first message in its private state
MEMORY = "memory of the optimiser/"  # prefix of what the optimiser carries on, in the same file
# What `keep` returns: prefixes and names of its tensors.
MODEL = "model/"
STATE = "state/"
SCALE = "scale/"
PREDICTIONS = "predictions"  # (n, outputs) float16, for every test window
WINDOWS = "windows"  # (n,) int64, the rows of these windows
NAME = re.compile(r"(\d{6})-(\d{6})\.safetensors")


class States(Protocol):
    """Where the private states of clients are kept between two asks."""

    def read(self, client: int, round: int) -> bytes:
        """Returns the state that was written for this client and round."""
        ...

    def write(self, client: int, round: int, data: bytes) -> None: ...


class StateStore:
    """Private client states on the client's own disk: one file per client and round, written whole
    or not at all. A file is accepted only for the experiment, client and round that it was written
    for."""

    def __init__(self, folder: Path, experiment: str = "") -> None:
        self.folder = folder
        self.experiment = experiment
        disk.make_folder(folder)

    def path(self, client: int, round: int) -> Path:
        return self.folder / f"{client:06d}-{round:06d}.safetensors"

    def read(self, client: int, round: int) -> bytes:
        way_out = "begin this run anew (compare --fresh removes it), or put back a copy of the file"
        return disk.unsealed(
            self.path(client, round),
            self._owner(client, round),
            f"the private state of client {client}",
            way_out,
        )

    def write(self, client: int, round: int, data: bytes) -> None:
        disk.write_file(self.path(client, round), disk.sealed(data, self._owner(client, round)))

    def _owner(self, client: int, round: int) -> str:
        return f"client {client} in round {round} of {self.experiment}"

    def versions(self) -> dict[int, set[int]]:
        """Returns the rounds for which each client has a state; removes half-written files."""
        rounds: dict[int, set[int]] = {}
        for partial in self.folder.glob("*.partial"):
            disk.remove(partial)
        for path in self.folder.glob("*.safetensors"):
            match = NAME.fullmatch(path.name)
            if match:  # other files, such as copies, do not belong to the run
                rounds.setdefault(int(match[1]), set()).add(int(match[2]))
        return rounds

    def drop(self, client: int, round: int) -> None:
        disk.remove(self.path(client, round))


@dataclass(frozen=True)
class _Begun:
    """A client whose model is filled."""

    client: Client
    state: Any
    received: Received
    first: dict[str, Tensor]  # an attacker's first message


class Executor:
    """Performs asks with one scratch model per architecture and sensor suite."""

    def __init__(
        self,
        fleet: FleetClients,
        store: States,
        subsets: str = "each",
        guard: Guard | None = None,
    ) -> None:
        self.fleet, self.store, self.subsets, self.guard = fleet, store, subsets, guard
        self.method: AnyMethod = fleet.method
        _, self.state_type, self.down_type, self.up_type = payload_types(type(self.method))

    def perform(self, ask: Ask) -> Answer:
        if ask.kind == "whole":
            return self._whole(ask)
        if ask.kind == "common":
            return self._common(ask)
        return self._end(ask, self._begin(ask))

    def perform_all(self, asks: Sequence[Ask], together: int) -> Iterator[Answer]:
        """Performs asks and yields the answers in their order. together: the largest number of
        clients that are trained at once, as far as they and the method allow it."""
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for index, ask in enumerate(asks):
            key = self._group_of(ask) if together > 1 else None
            groups[("alone", index) if key is None else key].append(index)
        answers: dict[int, Answer] = {}
        due = 0
        for indices in groups.values():
            for start in range(0, len(indices), max(1, together)):
                part = indices[start : start + together]
                made = self._together([asks[i] for i in part])
                answers.update(zip(part, made, strict=True))
            while due in answers:
                yield answers.pop(due)
                due += 1

    def _group_of(self, ask: Ask) -> Hashable | None:
        """Returns the key of the clients that this one can be trained with; None: with nobody."""
        if ask.kind != "train" or not isinstance(self.method, Recipe):
            return None
        return group_of(self.method, self.fleet.client(ask.client, ask.round))

    def _together(self, asks: Sequence[Ask]) -> list[Answer]:
        """Performs the asks of one group of clients, which share a scratch model."""
        if len(asks) == 1:
            return [self.perform(asks[0])]
        assert isinstance(self.method, Recipe)
        begun: list[_Begun] = []
        models: list[State] = []
        for ask in asks:
            begun.append(self._begin(ask))
            models.append(State.all(begun[-1].client.model))
        trained = train_together(self.method, [one.client for one in begun], models)
        answers = []
        for ask, one, model, (parameters, result) in zip(asks, begun, models, trained, strict=True):
            (model | parameters).load_into(one.client.model)
            client = replace(one.client, trained=result)
            answers.append(self._end(ask, replace(one, client=client)))
        return answers

    def _begin(self, ask: Ask) -> _Begun:
        """Opens the client and fills its model."""
        client = self.fleet.client(ask.client, ask.round, fresh=ask.since < 0)
        first: dict[str, Tensor] = {}
        if ask.since < 0:
            state = self.method.start_client(client)
        else:
            kept = load(self.store.read(ask.client, ask.since), device=self.fleet.device)
            client.memory.update(_taken(kept, MEMORY))
            first = _taken(kept, FIRST)
            state = unflatten(kept, self.state_type)
        received = receive(ask.down, self.down_type, device=self.fleet.device)
        state = self.method.adopt(client, state, received.payload)
        return _Begun(client, state, received, first)

    def _end(self, ask: Ask, begun: _Begun) -> Answer:
        """Lets the client compute and returns its answer."""
        client = begun.client
        state = begun.state
        received = begun.received
        first = begun.first
        down = received.payload
        if ask.kind in ("evaluate", "keep"):
            state = self.method.prepare(client, state)
            with torch.no_grad(), client.streams.torch("evaluation", ask.round, ask.client):
                if ask.kind == "keep":
                    return Answer(ask.client, self._learned(client, state))
                return Answer(ask.client, scores=self._scores(client, state))
        up = None
        if ask.kind == "after":
            assert isinstance(self.method, AfterExchange)
            state = self.method.after_exchange(client, state, down)
        else:
            state, up = self.method.local(client, state, down)
        private = self._private(client, state)
        broken = not_finite(private)  # kept, it would be so for good
        reason = f"{PRIVATE_STATE}{broken[0]} {NOT_FINITE}" if broken else ""
        if broken and self.guard is None:
            return Answer(ask.client, log=client.log, failure=reason)
        data = b""
        if ask.kind == "train":
            sent = self._guarded(client, flatten(up), received)
            if not first and self._replays(client):
                first = sent
            data = self._sent(client, sent, received.arrays, first)
        private |= {FIRST + key: tensor for key, tensor in first.items()}
        # Under a guard the message leaves all the same: silence would tell of the client's data.
        keeps = not broken and self._keep(ask, private)
        return Answer(ask.client, data, keeps, client.log, unkept=reason)

    def _guarded(
        self, client: Client, up: dict[str, Tensor], received: Received
    ) -> dict[str, Tensor]:
        """The message as privacy lets it leave the device."""
        if self.guard is None:
            return up
        down = received.payload
        shaped = self.guard.kappa != 1 and isinstance(down, DownMessage)
        subspace = down.subspace(self.method) if shaped else {}
        noise = client.generator("privacy")
        sent, clipped = self.guard.protect(up, received.arrays, subspace, client.round, noise)
        client.log[diagnostics.PRIVACY_CLIPPED.name] = clipped
        if not repairs(self.up_type):
            return sent
        noised: UpMessage = unflatten(dict(sent), self.up_type)
        return flatten(noised.repaired())

    def _replays(self, client: Client) -> bool:
        """Returns whether a client is an attacker that repeats its first message."""
        attack = self.fleet.fleet.attack
        return attack.kind == "replay" and attack.attacks(client.card.id, client.round)

    def _sent(
        self,
        client: Client,
        up: dict[str, Tensor],
        down: Mapping[str, Tensor],
        first: dict[str, Tensor],
    ) -> bytes:
        """Returns the message of a client, or what an attacker sends instead. first: the first
        message of an attacker that replays it."""
        attack = self.fleet.fleet.attack
        if not attack.attacks(client.card.id, client.round):
            return encode(up).data
        return encode(attack.message(client, up, down, first or up)).data

    def _whole(self, ask: Ask) -> Answer:
        """The common model with all of the fleet's sensors and with each alone, on this client's
        test windows. Nothing where a part of the model stays with clients."""
        client = self.fleet.whole_client(ask.client, ask.round)
        received = receive(ask.down, self.down_type, device=self.fleet.device)
        down = received.payload
        common = {name.partition("/")[2] for name in received.arrays}
        if not common.issuperset(client.card.shapes):
            return Answer(ask.client)
        state = self.method.adopt(client, self.method.start_client(client), down)
        client.model.eval()
        columns = ScoreColumns()
        with torch.no_grad(), client.streams.torch("evaluation", ask.round, ask.client):
            for subset in subsets_of(client.card.modalities, "each") if len(client.test) else ():
                everything = len(subset) == len(client.card.modalities)
                name = "all" if everything else f"only_{subset[0]}"
                scores = self._scored(client, state, client.test, subset, views=False)
                named = [
                    replace(score, metric=f"{score.metric}@{name}")
                    for score in scores
                    if score.label < 0 or is_count(score.metric)
                ]
                columns.add(ask.client, "test", "+".join(subset), True, named)
        return Answer(ask.client, scores=columns)

    def _private(self, client: Client, state: Any) -> dict[str, Tensor]:
        """All that a client keeps: its private state, and what its optimiser carries on."""
        memory = {MEMORY + key: tensor for key, tensor in client.memory.items()}
        return flatten(state) | memory

    def _keep(self, ask: Ask, private: dict[str, Tensor]) -> bool:
        """Private state goes to disk. One that never had a tensor needs no file: `start_client`
        makes it again."""
        message = encode(private)
        needed = bool(message.payload) or ask.since >= 0
        if needed:
            self.store.write(ask.client, ask.round, message.data)
        return needed

    def _scores(self, client: Client, state: Any) -> ScoreColumns:
        columns = ScoreColumns()
        splits: list[tuple[str, Samples]] = [("val", client.val), ("test", client.test)]
        if client.card.newcomer:
            splits = [(NEWCOMERS, client.test)]
        client.model.eval()
        for (split, samples), subset in product(
            splits, subsets_of(client.card.modalities, self.subsets)
        ):
            if not len(samples):
                continue
            own = subset == client.card.modalities
            scores = list(self._scored(client, state, samples, subset, views=own))
            columns.add(client.card.id, split, "+".join(subset), own, scores)
        return columns

    def _common(self, ask: Ask) -> Answer:
        """The model that a newcomer with all of the fleet's sensors gets. It is not prepared yet,
        as that may take windows of the newcomer."""
        client = self.fleet.whole_client(ask.client, ask.round)
        client = replace(client, card=replace(client.card, newcomer=True))
        down = receive(ask.down, self.down_type, device=self.fleet.device).payload
        state = self.method.adopt(client, self.method.start_client(client), down)
        return Answer(ask.client, encode(_model_and_state(client, state)).data)

    def _learned(self, client: Client, state: Any) -> bytes:
        """Returns what was learned for a client: its model as it predicts, the state that its
        predictions depend on, the scales of its sensors, and the predictions for its test
        windows."""
        client.model.eval()
        fleet = self.fleet.fleet
        learned = _model_and_state(client, state)
        for m, scale in fleet.scales(client.card.id).items():
            learned[f"{SCALE}{m}/mean"] = torch.as_tensor(scale.mean)
            learned[f"{SCALE}{m}/deviation"] = torch.as_tensor(scale.deviation)
        if len(client.test):
            values, _ = self._predicted(client, state, client.test, client.card.modalities)
            most = torch.finfo(torch.float16).max
            learned[PREDICTIONS] = values[""].clamp(-most, most).half()
            learned[WINDOWS] = torch.from_numpy(fleet.test_rows(client.card.id))
        return encode(learned).data

    def _scored(
        self, client: Client, state: Any, samples: Samples, subset: Sequence[str], views: bool
    ) -> Iterator[Score]:
        """The scores of the method's prediction and, with `views`, of what else it has to say.

        Its prediction and its measures are also scored over the windows that at least one sensor
        saw (`@seen`): a window that none saw is guessed. A client without such windows has no such
        score."""
        values, sensors = self._predicted(client, state, samples, subset, views)
        target = samples.target.cpu()
        yield from scores_of(client.task, values, target)
        seen = sensors > 0
        if views and bool(seen.any()):
            own = {f"{name}_seen": x for name, x in values.items() if x.ndim == 1}
            own["seen"] = values[""]
            kept = {name: x[seen] for name, x in own.items()}
            yield from scores_of(client.task, kept, target[seen])

    def _predicted(
        self,
        client: Client,
        state: Any,
        samples: Samples,
        subset: Sequence[str],
        views: bool = False,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The method's prediction ("") and, with `views`, what else it has to say; and how many
        sensors of the subset saw each window."""
        found: dict[str, list[Tensor]] = defaultdict(list)
        sensors: list[Tensor] = []
        expected = frequencies(client, self.fleet)
        for indices in torch.split(torch.arange(len(samples)), EVAL_BATCH):
            batch = only(samples.batch(indices), subset)
            there = torch.stack(list(batch.present.values())).sum(0)
            sensors.append(there.cpu())
            prediction = Prediction.of(self.method.predict(client, state, batch))
            said = {"": prediction.scored}
            if views:
                said |= {**prediction.views, "available": there.float()}
            if views and client.card.newcomer and expected is not None:
                said[MOST_FREQUENT] = expected.expand(len(batch), -1)
            for name, value in said.items():
                known = value if value.ndim == 1 else guessed(value, there > 0, expected)
                found[name].append(known.cpu())
        return {name: torch.cat(parts) for name, parts in found.items()}, torch.cat(sensors)


def _model_and_state(client: Client, state: Any) -> dict[str, Tensor]:
    """Returns the tensors of a client's model, and of the state that its predictions depend on."""
    tensors = {MODEL + path: tensor for path, tensor in State.all(client.model).items()}
    return tensors | {STATE + key: tensor for key, tensor in flatten(state).items()}


def _taken(kept: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Removes the tensors whose names begin with the prefix, and returns them without it."""
    names = [name for name in kept if name.startswith(prefix)]
    return {name[len(prefix) :]: kept.pop(name) for name in names}


def repairs(kind: Any) -> bool:
    """Returns whether messages of type `kind` are repaired after noise was added."""
    declares = isinstance(kind, type) and issubclass(kind, UpMessage)
    return declares and kind.repaired is not UpMessage.repaired


def scores_of(task: Task, values: Mapping[str, Tensor], target: Tensor) -> Iterator[Score]:
    """Of predictions (B, outputs) the task's scores, as `metric@name` unless they are the method's
    own (""); of measures (B,) the mean, as `mean@name`."""
    for name, x in values.items():
        if x.ndim == 1:
            yield Score(f"mean@{name}", float(x.double().mean()), support=len(x))
        elif not name:
            yield from task.scores(x, target)
        else:
            counts = name == "seen"  # the pooled macro-F1 is made of them
            for score in task.scores(x, target):
                if score.label < 0 or (counts and is_count(score.metric)):
                    yield replace(score, metric=f"{score.metric}@{name}")


def frequencies(client: Client, fleet: FleetClients) -> Tensor | None:
    """Returns (classes,): the logarithms of a client's own class frequencies in training; those of
    the whole fleet for a newcomer, whose labels nobody knows. None unless the task is to predict
    one class."""
    classes = client.task.classes
    if not classes or classes != client.task.outputs:
        return None
    if client.card.newcomer:
        counts = fleet.class_counts
    else:
        counts = torch.bincount(client.task.labels(client.train.target), minlength=classes)
    return ((counts + 1) / (counts.sum() + classes)).log()


def guessed(prediction: Tensor, seen: Tensor, expected: Tensor | None) -> Tensor:
    """A window that no sensor saw is given the class frequencies that are expected, so the
    prediction is the most frequent class, whatever a method would make of nothing."""
    if expected is None or bool(seen.all()):
        return prediction
    return torch.where(seen[:, None], prediction, expected.to(prediction))


def subsets_of(modalities: Sequence[str], which: str) -> list[tuple[str, ...]]:
    """The modality subsets to score: all that the client owns, and with "each" every single one of
    them too."""
    singles = [(m,) for m in modalities] if which == "each" and len(modalities) > 1 else []
    return [tuple(modalities), *singles]


def only(batch: Batch, subset: Sequence[str]) -> Batch:
    """The batch with every modality outside `subset` marked absent."""
    present = {m: p if m in subset else torch.zeros_like(p) for m, p in batch.present.items()}
    return replace(batch, present=present)

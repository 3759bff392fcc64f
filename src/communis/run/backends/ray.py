"""The backend for clusters: the clients of a round are spread over actors of Ray.

The fleet lies in the object store, once per node. An ask goes out with the downlink, of which equal
ones share an object, and with the client's private state; the answer comes back with the new one.
Private states are kept in the folder of the run, by this process alone. A node that dies therefore
costs the round of the clients that were at work there, and no state. As in the backend for one
machine, the client with the most work goes out first, answers are returned in client order, and
the bits of a run do not depend on the number of actors.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from communis.core.errors import CommunisError
from communis.core.scratch import Scratch
from communis.exchange.messages import Answer, Ask
from communis.exchange.privacy.guard import Guard
from communis.fleet.clients import FleetClients
from communis.run.backends.connection import check_same, connect
from communis.run.backends.executor import Executor, StateStore
from communis.run.backends.inprocess import SMALL, WorkerError
from communis.run.backends.machine import keep_freed_memory
from communis.run.backends.versions import Versions
from communis.run.folder import environment

PATIENCE = 600.0  # seconds until some actor must have started
NOTICE = 15.0  # seconds after which a user is told what is waited for
STILLBORN = 3  # actors in a row that may die before they have started
log = logging.getLogger("communis")


class RayActors:
    """Performs the asks of a round in actors on a Ray cluster."""

    def __init__(
        self,
        clients: FleetClients,
        states: Path | None = None,
        *,
        workers: int = 0,
        device: str = "cpu",
        subsets: str = "each",
        guard: Guard | None = None,
        experiment: str = "",
    ) -> None:
        """states: folder of the private client states, on this machine. workers: the number of
        actors; 0: one per core of the cluster. guard: protects the messages of clients. experiment:
        the digest that private states are bound to."""
        self._ray = connect()
        self.workers = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._spare: Scratch | None = None
        if states is None:
            self._spare = Scratch()
            states = self._spare.path / "states"
        self._store = StateStore(states, experiment)
        self._job = self._ray.put((clients.on(device), subsets, guard))
        self._cost = {card.id: card.samples * len(card.modalities) for card in clients.cards}
        self._versions = Versions(self._store, [card.id for card in clients.cards])
        self._actors: list[_Actor] = []
        self._stillborn = 0
        self._checked: dict[str, None] = {}  # nodes that compute as this one does

    def perform(self, asks: Sequence[Ask]) -> Iterator[Answer]:
        """Yields the answers in the order of the asks."""
        while len(self._actors) < min(self.workers, len(asks)):
            self._actors.append(self._new_actor())
        letters = _Letters(self._ray)
        waiting = deque(sorted(range(len(asks)), key=lambda i: (-self._cost[asks[i].client], i)))
        answers: dict[int, _Reply] = {}
        try:
            for due, ask in enumerate(asks):
                while due not in answers:
                    self._hand_out(asks, waiting, letters)
                    for actor in self._ready():
                        self._hear(actor, answers, waiting)
                self._hand_out(asks, waiting, letters)
                yield self._keep(ask, answers.pop(due))
        finally:
            for actor in [actor for actor in self._actors if actor.asked]:
                self._remove(actor)  # the round was abandoned

    def commit(self, *checkpoints: Sequence[int]) -> None:
        """Deletes private states that no checkpoint needs."""
        self._versions.commit(checkpoints)

    def close(self) -> None:
        if self._ray.is_initialized():
            for actor in list(self._actors):
                self._remove(actor)
        self._job = None
        if self._spare is not None:
            self._spare.close()

    def _hand_out(self, asks: Sequence[Ask], waiting: deque[int], letters: _Letters) -> None:
        """Gives every actor that has started an ask and, while there are plenty, a second one in
        advance, so that it need not wait for the network between two clients."""
        started = [actor for actor in self._actors if actor.started]
        for ahead in (1, 2):
            for actor in started:
                plenty = len(waiting) > (len(started) if ahead == 2 else 0)
                if len(actor.asked) < ahead and plenty:
                    index = waiting.popleft()
                    ask = asks[index]
                    state = self._store.read(ask.client, ask.since) if ask.since >= 0 else b""
                    down = letters.post(ask.down)
                    reply = actor.handle.perform.remote(replace(ask, down=b""), down, state)
                    actor.asked.append((reply, index, ask.client))

    def _ready(self) -> list[_Actor]:
        """Returns the actors that have started or answered, or died, since the last time. Waits
        until there is one."""
        by_message = {actor.next: actor for actor in self._actors if actor.next is not None}
        begun = time.monotonic()
        told = False
        while True:
            ready, _ = self._ray.wait(list(by_message), num_returns=1, timeout=1.0)
            if ready:
                return [by_message[message] for message in ready]
            waited = time.monotonic() - begun
            if any(actor.started for actor in self._actors):
                continue
            if waited > PATIENCE:
                raise CommunisError(
                    f"no actor has started within {PATIENCE:.0f} seconds: all cores of the Ray "
                    "cluster are in use, or its nodes are gone (`ray status` tells which)"
                )
            if waited > NOTICE and not told:
                told = True
                log.warning("waiting for a free core of the Ray cluster")

    def _hear(self, actor: _Actor, answers: dict[int, _Reply], waiting: deque[int]) -> None:
        """Reads the next message of an actor. If it died, the client that it was at work for gets a
        failure as its answer, what it had not begun goes back to `waiting`, and a new actor, on
        whichever node has room, takes its place."""
        error = self._ray.exceptions.RayError
        if not actor.started:
            try:
                node, about = self._ray.get(actor.greeting)
            except error as why:
                self._stillborn += 1
                self._replace(actor)
                if self._stillborn >= STILLBORN:
                    raise CommunisError(f"actors die while they start: {_first(why)}") from None
                return
            if node not in self._checked:
                check_same(node, about)
                self._checked[node] = None
            actor.started = True
            self._stillborn = 0
            return
        message, index, client = actor.asked.popleft()
        try:
            answers[index] = self._ray.get(message)
        except self._ray.exceptions.RayTaskError as why:
            raise WorkerError(f"client {client}: {why}") from None
        except error as why:
            reason = f"the node or the process of its actor died ({type(why).__name__})"
            answers[index] = _Reply(Answer(client, failure=reason))
            waiting.extendleft(index for _, index, _ in actor.asked)
            actor.asked.clear()
            self._replace(actor)

    def _keep(self, ask: Ask, reply: _Reply) -> Answer:
        """Writes the private state that came with an answer, and returns the answer."""
        if reply.bug:
            raise WorkerError(f"client {ask.client}: {reply.bug}")
        if reply.answer.keeps_state:
            self._store.write(ask.client, ask.round, reply.state)
            self._versions.add(ask.client, ask.round)
        return reply.answer

    def _new_actor(self) -> _Actor:
        remote = self._ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(_Clients)
        handle = remote.remote(self._job)
        return _Actor(handle, handle.greet.remote(), deque())

    def _replace(self, actor: _Actor) -> None:
        self._remove(actor)
        self._actors.append(self._new_actor())

    def _remove(self, actor: _Actor) -> None:
        self._ray.kill(actor.handle)
        self._actors.remove(actor)


@dataclass(eq=False)
class _Actor:
    """This process's side of an actor."""

    handle: Any
    greeting: Any  # reference to its first message, with which it has started
    asked: deque[tuple[Any, int, int]]  # reference to the reply, index and client of open asks
    started: bool = False

    @property
    def next(self) -> Any:
        """The reference to its next message; None if none is expected."""
        if not self.started:
            return self.greeting
        return self.asked[0][0] if self.asked else None


class _Letters:
    """Messages to actors: long ones lie in the object store, equal ones once."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._posted: dict[int, tuple[bytes, Any]] = {}

    def post(self, data: bytes) -> Any:
        """Returns the message, or the reference to it."""
        if len(data) < SMALL:
            return data
        if id(data) not in self._posted:
            self._posted[id(data)] = data, self._ray.put(data)
        return self._posted[id(data)][1]


@dataclass(frozen=True)
class _Reply:
    """What an actor sends back."""

    answer: Answer
    state: bytes = b""  # the client's new private state, if the answer says that it keeps one
    bug: str = ""  # the traceback, if the client's code failed


class _Carried:
    """The private state of a client: it came with the ask, and goes back with the answer."""

    def __init__(self) -> None:
        self.came = b""
        self.goes = b""

    def read(self, client: int, round: int) -> bytes:
        return self.came

    def write(self, client: int, round: int, data: bytes) -> None:
        self.goes = data


class _Clients:
    """The actor: performs asks one after the other, with one thread."""

    def __init__(self, job: tuple[FleetClients, str, Guard | None]) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        clients, subsets, guard = job
        self._state = _Carried()
        self._executor = Executor(clients, self._state, subsets, guard)

    def greet(self) -> tuple[str, dict[str, Any]]:
        """Returns the address of this node and what it computes with."""
        ray = connect()
        return ray.util.get_node_ip_address(), environment()

    def perform(self, ask: Ask, down: bytes, state: bytes) -> _Reply:
        self._state.came = state
        self._state.goes = b""
        try:
            answer = self._executor.perform(replace(ask, down=down))
        except CommunisError as error:
            return _Reply(Answer(ask.client), bug=str(error))
        except Exception:
            return _Reply(Answer(ask.client), bug=traceback.format_exc())
        return _Reply(answer, self._state.goes)


def _first(error: Exception) -> str:
    """Returns the first lines of what Ray says, which go on with its log."""
    return " ".join(str(error).split("\n")[:3])

"""The default backend: persistent worker processes on this machine, or the main process alone.

Each worker has one torch thread. The client with the most work is sent out first; answers are
returned in client order, and every message is read and summed in that order. The bits of a run
therefore do not depend on the number of workers. Large messages travel through files in shared
memory; equal messages (a model that is the same for all clients) are stored once.
"""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from communis.core import disk
from communis.core.errors import CommunisError
from communis.core.scratch import Scratch
from communis.exchange.messages import Answer, Ask
from communis.exchange.privacy.guard import Guard
from communis.fleet.clients import FleetClients
from communis.run.backends.executor import Executor, StateStore
from communis.run.backends.machine import (
    default_start_method,
    default_workers,
    serve_parent,
    shared_memory,
    start,
)
from communis.run.backends.versions import Versions

SMALL = 32_768  # bytes; shorter messages go through the pipe itself


class WorkerError(CommunisError):
    """A client's code failed; the text holds the traceback."""


class InProcess:
    """Performs the asks of a round in worker processes of this machine."""

    def __init__(
        self,
        clients: FleetClients,
        states: Path | None = None,
        *,
        workers: int = 0,
        subsets: str = "each",
        start_method: str = "",
        guard: Guard | None = None,
        experiment: str = "",
        together: int = 1,
    ) -> None:
        """states: folder of the private client states. workers: number of processes; 1: no process
        besides this one, 0: the number that `default_workers` returns. guard: protects the messages
        of clients. experiment: the digest that private states are bound to. together: clients that
        are trained at once; if there are several, this process trains them."""
        start_method = start_method or default_start_method(clients.device.type)
        self.workers = 1 if together > 1 else workers or default_workers(start_method)
        self._together = together
        self._scratch = Scratch(shared_memory())
        self._mail = self._scratch.path
        self._spare: Scratch | None = None
        if states is None:
            self._spare = Scratch()
            states = self._spare.path / "states"
        self._store = StateStore(states, experiment)
        self._job = (clients, self._store, subsets, guard)
        self._context = multiprocessing.get_context(start_method)
        self._pool: list[_Worker] = []
        self._executor: Executor | None = None
        self._cost = {card.id: card.samples * len(card.modalities) for card in clients.cards}
        self._versions = Versions(self._store, [card.id for card in clients.cards])

    def perform(self, asks: Sequence[Ask]) -> Iterator[Answer]:
        """Yields the answers in the order of the asks."""
        if self.workers == 1 or len(asks) == 1:
            answers = self._here(asks)
        else:
            answers = self._in_workers(asks)
        for ask, answer in zip(asks, answers, strict=True):
            if answer.keeps_state:
                self._versions.add(ask.client, ask.round)
            yield answer

    def commit(self, *checkpoints: Sequence[int]) -> None:
        """Deletes private states that no checkpoint needs."""
        self._versions.commit(checkpoints)

    def close(self) -> None:
        for worker in self._pool:
            worker.stop()
        self._pool = []
        self._scratch.close()
        if self._spare is not None:
            self._spare.close()

    def _here(self, asks: Sequence[Ask]) -> Iterator[Answer]:
        if self._executor is None:
            self._executor = _executor(self._job)
        yield from self._executor.perform_all(asks, self._together)

    def _in_workers(self, asks: Sequence[Ask]) -> Iterator[Answer]:
        while len(self._pool) < min(self.workers, len(asks)):
            self._pool.append(
                _Worker(self._context, self._job, self._mail / f"worker{len(self._pool)}")
            )
        letters = _Letters(self._mail)
        waiting = deque(sorted(range(len(asks)), key=lambda i: (-self._cost[asks[i].client], i)))
        answers: dict[int, Answer] = {}
        try:
            for due in range(len(asks)):
                while due not in answers:
                    self._hand_out(asks, waiting, letters)
                    ready = wait([worker.pipe for worker in self._pool if worker.asked])
                    for worker in [w for w in self._pool if w.pipe in ready]:
                        if not worker.ready():
                            continue
                        index, answer = worker.receive()
                        answers[index] = answer
                        waiting.extendleft(worker.give_back())
                self._hand_out(asks, waiting, letters)
                yield answers.pop(due)
        finally:
            letters.close()
            for worker in [w for w in self._pool if w.asked]:  # the round was abandoned
                worker.stop(patience=0)
                self._pool.remove(worker)

    def _hand_out(self, asks: Sequence[Ask], waiting: deque[int], letters: _Letters) -> None:
        """Gives every worker an ask and, while there are plenty, a second one in advance, so that
        it need not wait for this process between two clients."""
        for ahead in (1, 2):
            for worker in self._pool:
                plenty = len(waiting) > (len(self._pool) if ahead == 2 else 0)
                if len(worker.asked) < ahead and plenty:
                    index = waiting.popleft()
                    worker.send(index, asks[index], letters.post(asks[index].down))


class _Letters:
    """Messages to workers: short ones travel through the pipe, long ones as files in shared memory.
    Equal messages share a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._posted: dict[int, tuple[bytes, str]] = {}

    def post(self, data: bytes) -> bytes | str:
        if len(data) < SMALL:
            return data
        if id(data) not in self._posted:
            path = self.folder / f"down{len(self._posted)}"
            disk.write_file(path, data)
            self._posted[id(data)] = data, str(path)
        return self._posted[id(data)][1]

    def close(self) -> None:
        for _, path in self._posted.values():
            Path(path).unlink(missing_ok=True)


class _Worker:
    """The parent's side of a process that performs asks one after the other."""

    pipe: Connection

    def __init__(self, context: Any, job: tuple[Any, ...], outbox: Path) -> None:
        self._context, self._job, self._outbox = context, job, str(outbox)
        self.asked: deque[tuple[int, int]] = deque()  # index and client of every open ask
        self._lost: list[int] = []  # asks that were sent in advance to a process that died
        self._start()

    def _start(self) -> None:
        """Starts the process. A forked process has the job in its memory. Others receive it through
        the pipe, which breaks if they die; multiprocessing itself would wait for them to read
        it."""
        self._greeted = False  # whether the process has reported that it runs
        self.pipe, theirs = self._context.Pipe()
        forked = self._context.get_start_method() == "fork"
        job = self._job if forked else None
        self._process = self._context.Process(
            target=_serve, args=(theirs, job, self._outbox), daemon=True
        )
        start(self._process)
        theirs.close()
        if not forked:
            try:
                self.pipe.send_bytes(pickle.dumps(self._job, pickle.HIGHEST_PROTOCOL))
            except OSError:
                raise self._stillborn() from None

    def ready(self) -> bool:
        """Returns whether the pipe holds an answer. The first message of a process reports that it
        runs; a process that dies before it would die again."""
        if self._greeted:
            return True
        try:
            self.pipe.recv()
        except (EOFError, ConnectionError):
            raise self._stillborn() from None
        self._greeted = True
        return False

    def _stillborn(self) -> CommunisError:
        self._process.join()
        return CommunisError(
            f"a worker process died while it started (exit code {self._process.exitcode}); if "
            "nothing above says why, there may not be enough memory: set run.workers to a smaller "
            "number, or to 1 to work without such processes"
        )

    def send(self, index: int, ask: Ask, letter: bytes | str) -> None:
        message = (replace(ask, down=b""), letter)
        try:
            self.pipe.send(message)
        except OSError:  # the process died
            if not self.asked:  # with nothing to do; otherwise `receive` will see it
                self.ready()  # ends the run if the process died while it started
                self._start()
                with suppress(OSError):  # if this one died as well, `ready` will see it
                    self.pipe.send(message)
        self.asked.append((index, ask.client))

    def receive(self) -> tuple[int, Answer]:
        """Returns the answer to the oldest ask. If the process died (out of memory, killed), the
        answer is a failure of that client, and a new process replaces it."""
        index, client = self.asked.popleft()
        try:
            answer, up, failure = self.pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
            self._lost = [index for index, _ in self.asked]
            self.asked.clear()
            self._start()
            reason = f"the worker process died (exit code {code}); is there enough memory?"
            return index, Answer(client, failure=reason)
        if failure:
            raise WorkerError(f"client {client}: {failure}")
        return index, replace(answer, up=_fetch(up))

    def give_back(self) -> list[int]:
        """Returns, once, the asks that a process had not begun when it died."""
        lost, self._lost = self._lost, []
        return lost

    def stop(self, patience: float = 5) -> None:
        with suppress(OSError, ValueError):
            self.pipe.send(None)
        self._process.join(timeout=patience)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.pipe.close()


def _serve(pipe: Connection, job: tuple[Any, ...] | None, outbox: str) -> None:
    """Runs the loop of a worker. A job that is None comes through the pipe. On Ctrl-C and SIGTERM
    the parent finishes the round and then stops its workers."""
    serve_parent()
    if job is None:
        job = pickle.loads(pipe.recv_bytes())  # from our own parent
    pipe.send(None)
    executor: Executor | None = None
    for letter_number in count():
        try:
            task = pipe.recv()
        except EOFError:
            return
        if task is None:
            return
        ask, letter = task
        try:
            executor = executor or _executor(job)
            answer = executor.perform(replace(ask, down=_fetch(letter)))
            up: bytes | str = answer.up
            if len(answer.up) >= SMALL:
                up = f"{outbox}-{letter_number % 2}"  # the parent may still have to read the last
                disk.overwrite(Path(up), answer.up)
            pipe.send((replace(answer, up=b""), up, ""))
        except CommunisError as error:
            pipe.send((None, b"", str(error)))
        except Exception:
            pipe.send((None, b"", traceback.format_exc()))


def _fetch(letter: bytes | str) -> bytes:
    """Returns a message that came through the pipe or lies in shared memory."""
    return Path(letter).read_bytes() if isinstance(letter, str) else letter


def _executor(job: tuple[Any, ...]) -> Executor:
    clients, store, subsets, guard = job
    return Executor(clients, store, subsets, guard)

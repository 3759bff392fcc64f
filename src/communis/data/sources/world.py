"""World: generated people in generated rooms, seen by wearables, Wi-Fi, radar, LiDAR and a depth
camera at once, with the truth about action, position, pose and count.

The physics is in `communis.data.world`; here settings become windows. A subject's windows depend on
the seed and the subject's number only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Modality, Task
from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.core.tasks import Classification, Counting, Localisation, Pose, Several, Single
from communis.data.recordings.about import About
from communis.data.recordings.recording import Kind
from communis.data.recordings.splits import Splits
from communis.data.recordings.windows import VAL, Windows
from communis.data.world import inertial
from communis.data.world.actions import NAMES
from communis.data.world.body import JOINTS
from communis.data.world.rooms import MOST_SHIFT, Room, room
from communis.data.world.scene import Scene, scene
from communis.data.world.schedule import schedule
from communis.data.world.sensors import Sensors

ABOUT = About(licence="none needed: generated")

Target = Literal["action", "position", "pose", "count", "all"]
Split = Literal["trial", "time", "subject", "scene", "leaky"]  # there is one session
MOST = 20  # people
KINDS: dict[Modality, Kind] = {
    "csi": "csi", "mmwave": "points", "lidar": "points", "depth": "image",
}  # others are series  # fmt: skip
UNITS = {"heart": "bpm", "csi": "relative", "mmwave": "m, m/s, dB", "lidar": "m", "depth": "m"}


@dataclass(frozen=True)
class World(Sensors):
    """Settings of `[data] name = "world"`."""

    clients: int = 10  # subjects; each wears the body sensors and lives in one room
    rooms: int = 4  # dealt out to the subjects in turn
    windows: int = 100  # per client
    trial: int = 4  # windows in a row at one place, at most: every class gets at least five trials
    target: Target = "action"  # what is predicted; all: action, position, pose (and count) at once
    actions: tuple[str, ...] = NAMES  # what people do
    people: tuple[int, int] = (1, 1)  # fewest and most in the room, the subject included
    skew: float = 1000.0  # Dirichlet concentration of each client's classes; large: balanced
    room_shift: float = 1.0  # how much rooms differ; 0: not
    split: Split = "trial"  # what may not be in training and test at once
    shares: tuple[float, float, float] = (0.6, 0.2, 0.2)  # for training, validation and test
    gap: float = 1.0  # window lengths left out between the parts of a trial that time cuts
    held_out: tuple[int, ...] = ()  # subjects, scenes or trials to test on; empty: drawn by seed

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "clients", "rooms", "windows", "trial")
        self._at_least(0, "room_shift")
        self._at_most(MOST_SHIFT, "room_shift")
        self._positive("skew")
        self._chosen("actions", NAMES)
        self._splits()
        fewest, most = self.people if len(self.people) == 2 else (-1, -1)
        if not 0 <= fewest <= most <= MOST or most == 0:
            raise CommunisError(
                f"people must be two numbers, fewest and most, from 0 to {MOST}, got "
                f"{list(self.people)}"
            )
        if self.target == "count" and fewest == most:
            raise CommunisError(
                f"target count needs numbers to tell apart, got people = {list(self.people)}; "
                f"say people = [0, {MOST}]"
            )
        if self.target != "count" and fewest == 0:
            raise CommunisError(
                f"target {self.target} speaks of the subject, who must be there: people must "
                f"start at 1 or more, got {list(self.people)}"
            )

    def load(self, streams: Streams) -> Windows:
        self.require_memory(self.clients * self.windows)
        homes = [
            room(streams.generator("world.room", i), self.room_shift) for i in range(self.rooms)
        ]
        inputs: dict[Modality, Array] = {}
        plans, counts, targets = [], [], []
        for subject in range(self.clients):
            now = self._scene(streams, subject, homes[subject % self.rooms])
            plans.append(now.plan)
            counts.append(now.count)
            targets.append(self._targets(now))
            for first, (m, values) in self.sense(_generators(streams, subject), now):
                if m not in inputs:
                    shape = (self.clients * self.windows, *values.shape[1:])
                    inputs[m] = np.empty(shape, np.float32)
                begin = subject * self.windows + first
                inputs[m][begin : begin + len(values)] = values
        owner = np.repeat(np.arange(self.clients), self.windows)
        trials = np.cumsum([0, *(plan.trial[-1] + 1 for plan in plans)])
        there = np.concatenate(counts) > 0  # nobody wears anything in an empty room
        made = Windows(
            inputs,
            np.concatenate(targets),
            owner,
            np.zeros(len(owner), np.int8),
            self._task(),
            {} if there.all() else {m: there for m in inputs if m not in KINDS},
            self._labels(),
            scene=owner % self.rooms,
            trial=np.concatenate([plan.turn for plan in plans]),
            recording=np.concatenate([plan.trial for plan in plans]) + trials[owner],
            start=np.tile(np.arange(self.windows) * self.seconds, self.clients),
            seconds=self.seconds,
            kinds={m: KINDS.get(m, "series") for m in inputs},
            units={m: UNITS.get(m) or inertial.UNITS[m.rpartition("_")[2]] for m in inputs},
        )
        return self._divided(made, streams)

    def _splits(self) -> Splits:
        return Splits(self.split, self.shares, self.gap, self.held_out)

    def _divided(self, made: Windows, streams: Streams) -> Windows:
        """Into training, validation and test, or an error that says of what there is too little."""
        size = (
            f"this world has data.clients = {self.clients} in data.rooms = {self.rooms}, and "
            f"data.windows = {self.windows} for each client's {self._classes()} classes"
        )
        try:
            found = self._splits().apply(made, streams)
        except CommunisError as error:
            raise CommunisError(f"{error}; {size}") from None
        if self.shares[VAL] and not (found.split == VAL).any():
            raise CommunisError(
                f"split by {self.split} leaves no window for validation: {size}; raise what it "
                "divides, or give validation no share: data.shares = [0.8, 0, 0.2]"
            )
        return found

    def _scene(self, streams: Streams, subject: int, home: Room) -> Scene:
        plan = schedule(
            streams.generator("world.schedule", subject),
            self.windows,
            self._classes(),
            self.skew,
            self.trial,
        )
        return scene(
            lambda name, k: streams.generator(f"world.{name}", subject, k),
            home,
            plan,
            np.array([NAMES.index(name) for name in self.actions]),
            self.people,
            self.target == "count",
            self.seconds,
            self.subject_shift,
        )

    def _classes(self) -> int:
        """How many things there are of which a subject does one after the other."""
        fewest, most = self.people
        return most - fewest + 1 if self.target == "count" else len(self.actions)

    def _task(self) -> Task:
        tasks: dict[str, Single] = {
            "action": Classification(len(self.actions)),
            "position": Localisation(2),
            "pose": Pose(len(JOINTS)),
            "count": Counting(self.people[1] + 1),
        }
        if self.target != "all":
            return tasks[self.target]
        names = self._together()
        return Several(names, tuple(tasks[name] for name in names))

    def _together(self) -> tuple[str, ...]:
        """The tasks that `all` stands for: there is nothing to count if the number is fixed."""
        varies = self.people[0] < self.people[1]
        return ("action", "position", "pose", *(["count"] if varies else []))

    def _labels(self) -> tuple[str, ...]:
        if self.target == "count":
            return tuple(str(n) for n in range(self.people[1] + 1))
        return self.actions if self.target in ("action", "all") else ()

    def _targets(self, now: Scene) -> Array:
        """Of the subject, in the middle of each window."""
        if self.target == "count":
            return now.count
        number = np.zeros(len(NAMES), np.int64)
        number[[NAMES.index(name) for name in self.actions]] = np.arange(len(self.actions))
        action = number[now.action]
        if self.target == "action":
            return action
        _, subject = now.crowd.members[0]
        motion = subject.at(np.array([self.seconds / 2]))
        columns = {
            "action": action[:, None],
            "position": motion.root[:2, :, 0].T,
            "pose": motion.pose[..., 0].transpose(2, 0, 1).reshape(len(action), -1),
            "count": now.count[:, None],
        }
        names = self._together() if self.target == "all" else (self.target,)
        return np.concatenate([columns[name] for name in names], 1).astype(np.float32)


def _generators(streams: Streams, subject: int) -> Callable[[str], np.random.Generator]:
    return lambda name: streams.generator(f"world.{name}", subject)

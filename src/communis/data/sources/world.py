"""World: generated people in generated rooms, sensed by wearables, Wi-Fi, radar, LiDAR and a depth
camera at once, with true action, position, pose and count.

The physics is in `communis.data.world`; this module makes windows from settings. The windows of a
subject depend only on the seed and the number of the subject.
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
Split = Literal["trial", "time", "subject", "scene", "leaky"]  # no session: there is only one
MOST = 20  # people
KINDS: dict[Modality, Kind] = {  # the others are series
    "csi": "csi",
    "mmwave": "points",
    "lidar": "points",
    "depth": "image",
}
UNITS = {"heart": "bpm", "csi": "relative", "mmwave": "m, m/s, dB", "lidar": "m", "depth": "m"}


@dataclass(frozen=True)
class World(Sensors):
    """Settings of `[data] name = "world"`."""

    clients: int = 10  # number of subjects; each wears the body sensors and lives in one room
    rooms: int = 4  # number of rooms, assigned to the subjects in turn
    windows: int = 100  # windows per client
    # most windows in a row at one place; less if a class would have fewer than five trials
    trial: int = 4
    # quantity to predict; all: action, position and pose (and count if it varies) at once
    target: Target = "action"
    actions: tuple[str, ...] = NAMES  # actions of the people
    people: tuple[int, int] = (1, 1)  # fewest and most people in a room, with the subject: 0 to 20
    skew: float = 1000.0  # Dirichlet concentration of each client's classes; large: balanced
    room_shift: float = 1.0  # size of the differences between rooms; 0: none
    split: Split = "trial"  # unit that is never in training and test at once
    shares: tuple[float, float, float] = (0.6, 0.2, 0.2)  # shares of training, validation and test
    gap: float = 1.0  # gap between the parts of a trial with split = time, in window lengths
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
                f"target count needs different numbers of people, got people = "
                f"{list(self.people)}; set people = [0, {MOST}]"
            )
        if self.target != "count" and fewest == 0:
            raise CommunisError(
                f"target {self.target} is that of the subject, who must be present: people must "
                f"start at 1 or more, got {list(self.people)}"
            )

    def load(self, streams: Streams) -> Windows:
        self.require_memory(self.clients * self.windows)
        homes = []
        for number in range(self.rooms):
            homes.append(room(streams.generator("world.room", number), self.room_shift))
        inputs: dict[Modality, Array] = {}
        plans = []
        counts = []
        targets = []
        for subject in range(self.clients):
            seen = self._scene(streams, subject, homes[subject % self.rooms])
            plans.append(seen.plan)
            counts.append(seen.count)
            targets.append(self._targets(seen))
            for first, (m, values) in self.sense(_generators(streams, subject), seen):
                if m not in inputs:
                    shape = (self.clients * self.windows, *values.shape[1:])
                    inputs[m] = np.empty(shape, np.float32)
                begin = subject * self.windows + first
                inputs[m][begin : begin + len(values)] = values
        owner = np.repeat(np.arange(self.clients), self.windows)
        first_trial = np.cumsum([0, *(plan.trial[-1] + 1 for plan in plans)])
        occupied = np.concatenate(counts) > 0
        present: dict[Modality, Array] = {}
        if not occupied.all():  # nobody wears sensors in an empty room
            present = {m: occupied for m in inputs if m not in KINDS}
        windows = Windows(
            inputs,
            np.concatenate(targets),
            owner,
            np.zeros(len(owner), np.int8),
            self._task(),
            present,
            self._labels(),
            scene=owner % self.rooms,
            trial=np.concatenate([plan.turn for plan in plans]),
            recording=np.concatenate([plan.trial for plan in plans]) + first_trial[owner],
            start=np.tile(np.arange(self.windows) * self.seconds, self.clients),
            seconds=self.seconds,
            kinds={m: KINDS.get(m, "series") for m in inputs},
            units={m: UNITS.get(m) or inertial.UNITS[m.rpartition("_")[2]] for m in inputs},
        )
        return self._divided(windows, streams)

    def _splits(self) -> Splits:
        return Splits(self.split, self.shares, self.gap, self.held_out)

    def _divided(self, windows: Windows, streams: Streams) -> Windows:
        """Returns the windows divided into training, validation and test; an error states the
        settings that are too small."""
        size = (
            f"this world has data.clients = {self.clients} in data.rooms = {self.rooms}, and "
            f"data.windows = {self.windows} for each client's {self._classes()} classes"
        )
        try:
            divided = self._splits().apply(windows, streams)
        except CommunisError as error:
            raise CommunisError(f"{error}; {size}") from None
        if self.shares[VAL] and not (divided.split == VAL).any():
            raise CommunisError(
                f"split by {self.split} leaves no window for validation: {size}; raise the number "
                "that it divides, or give validation no share: data.shares = [0.8, 0, 0.2]"
            )
        return divided

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
        """Returns the number of classes of a subject's trials: actions, or numbers of people."""
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
        names = self._all_targets()
        return Several(names, tuple(tasks[name] for name in names))

    def _all_targets(self) -> tuple[str, ...]:
        """Returns the targets of target = all, which has no count if the number is fixed."""
        fewest, most = self.people
        targets = ("action", "position", "pose")
        return (*targets, "count") if fewest < most else targets

    def _labels(self) -> tuple[str, ...]:
        if self.target == "count":
            return tuple(str(n) for n in range(self.people[1] + 1))
        return self.actions if self.target in ("action", "all") else ()

    def _targets(self, seen: Scene) -> Array:
        """Returns the target of the subject in the middle of each window."""
        if self.target == "count":
            return seen.count
        number = np.zeros(len(NAMES), np.int64)
        number[[NAMES.index(name) for name in self.actions]] = np.arange(len(self.actions))
        action = number[seen.action]
        if self.target == "action":
            return action
        _, subject = seen.crowd.members[0]
        motion = subject.at(np.array([self.seconds / 2]))
        columns = {
            "action": action[:, None],
            "position": motion.root[:2, :, 0].T,
            "pose": motion.pose[..., 0].transpose(2, 0, 1).reshape(len(action), -1),
            "count": seen.count[:, None],
        }
        names = self._all_targets() if self.target == "all" else (self.target,)
        return np.concatenate([columns[name] for name in names], 1).astype(np.float32)


def _generators(streams: Streams, subject: int) -> Callable[[str], np.random.Generator]:
    return lambda name: streams.generator(f"world.{name}", subject)

"""Scene: what happens around one subject, window after window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from communis.data.world.body import Array
from communis.data.world.people import Crowd, habits, people
from communis.data.world.rooms import Room
from communis.data.world.schedule import Schedule


@dataclass(frozen=True)
class Scene:
    room: Room
    plan: Schedule
    action: Array  # (N,) what the subject does, as an index into ACTIONS
    count: Array  # (N,) how many people are there; the subject leaves last
    crowd: Crowd


def scene(
    random: Callable[[str, int], np.random.Generator],
    room: Room,
    plan: Schedule,
    actions: Array,
    counts: tuple[int, int],
    counting: bool,
    seconds: float,
    shift: float,
) -> Scene:
    """actions: the indices that occur; counts: fewest and most people; counting: the plan's labels
    are numbers of people above the fewest instead of actions. random(name, k): generators."""
    trials = int(plan.trial[-1]) + 1
    label = np.zeros(trials, np.int64)
    label[plan.trial] = plan.label
    fewest, most = counts
    draw = random("trials", 0)
    count = fewest + (label if counting else draw.integers(most - fewest + 1, size=trials))
    action, members = np.zeros(trials, np.int64), []
    for k in range(max(1, int(count.max()))):  # the subject acts even while nobody is in the room
        rng = random("person", k)
        who = habits(rng, trials if k else 1, shift)
        doing = rng.choice(actions, trials)
        if k == 0:
            who = who.take(np.zeros(trials, np.int64))
            doing = doing if counting else actions[label]
            action = doing
        rows = np.flatnonzero(count[plan.trial] > k)
        movers = people(rng, doing, who, room).take(plan.trial[rows])
        members.append((rows, replace(movers, clock=seconds * plan.into[rows])))
    crowd = Crowd(len(plan.label), tuple(members))
    return Scene(room, plan, action[plan.trial], count[plan.trial], crowd)

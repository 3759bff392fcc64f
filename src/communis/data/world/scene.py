"""Scene: the actions and people around one subject, window by window."""

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
    """All windows of one subject in a room."""

    room: Room
    plan: Schedule
    action: Array  # (N,) action of the subject, an index into ACTIONS
    count: Array  # (N,) number of people in the room; the subject is the last to leave
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
    """Returns the scene of a subject.

    actions: indices of the possible actions; counts: fewest and most people; counting: whether the
    labels of the plan are numbers of people above the fewest, not actions; random(name, k): returns
    a generator.
    """
    trials = int(plan.trial[-1]) + 1
    label = np.zeros(trials, np.int64)
    label[plan.trial] = plan.label
    fewest, most = counts
    draw = random("trials", 0)
    count = fewest + (label if counting else draw.integers(most - fewest + 1, size=trials))
    action = np.zeros(trials, np.int64)  # of the subject, who is person 0
    members = []
    for k in range(max(1, int(count.max()))):  # the subject has actions even in an empty room
        rng = random("person", k)
        who = habits(rng, trials if k else 1, shift)
        own_action = rng.choice(actions, trials)
        if k == 0:
            who = who.take(np.zeros(trials, np.int64))
            if not counting:
                own_action = actions[label]
            action = own_action
        rows = np.flatnonzero(count[plan.trial] > k)
        of_trials = people(rng, own_action, who, room)
        of_windows = of_trials.take(plan.trial[rows])
        members.append((rows, replace(of_windows, clock=seconds * plan.into[rows])))
    crowd = Crowd(len(plan.label), tuple(members))
    return Scene(room, plan, action[plan.trial], count[plan.trial], crowd)

"""What a plain learner gets out of every sensor of the world: `python benchmarks/world/learn.py`.

Random forests on simple statistics of a window; trained on all subjects together, tested on their
last trials, and on subjects in a room that was never seen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sklearn.ensemble import RandomForestClassifier

from communis.core.streams import Streams
from communis.data.recordings.windows import TEST, TRAIN, Windows
from communis.data.sources.world import World
from communis.data.world.body import Array

SEEDS = (0, 1, 2)


def features(data: Windows, modality: str) -> Array:
    values = data.inputs[modality]
    if data.kinds[modality] == "image":
        return values.reshape(len(values), -1)
    if data.kinds[modality] == "csi":
        steps = np.log(np.square(np.diff(values, axis=3)).mean(3) + 1e-6)
        return np.concatenate([steps, values.mean(3), values.std(3)], 1).reshape(len(values), -1)
    parts = [f(values, axis=2) for f in (np.nanmean, np.nanstd, np.nanmin, np.nanmax)]
    return np.concatenate(parts, 1)


def score(data: Windows, x: Array, train: Array, test: Array) -> tuple[float, float]:
    """Accuracy and mean absolute error."""
    forest = RandomForestClassifier(100, random_state=0)
    found = forest.fit(x[train], data.target[train]).predict(x[test])
    wrong = found - data.target[test]
    return float((wrong == 0).mean()), float(np.abs(wrong).mean())


def show(title: str, worlds: list[Windows]) -> None:
    print(f"\n{title}\n| sensor | later trials | a new room and its subjects |\n|---|---|---|")
    for modality in worlds[0].modalities:
        later, new = [], []
        for data in worlds:
            x, held = features(data, modality), data.scene == data.scene.max()
            later.append(score(data, x, data.split == TRAIN, data.split == TEST))
            new.append(score(data, x, ~held, held))
        cells = []
        for scores in (later, new):
            (accuracy, error), spread = np.mean(scores, 0), np.std(scores, 0)[0]
            counted = f", error {error:.1f}" if worlds[0].labels[0] == "0" else ""
            cells.append(f"{accuracy:.2f} ± {spread:.2f}{counted}")
        print(f"| {modality} | {' | '.join(cells)} |")


def main() -> None:
    title = "Nine actions, 20 subjects in 5 rooms x 90 windows; chance 0.11"
    homes = World(clients=20, rooms=5, windows=90)
    show(title, [homes.load(Streams(seed)) for seed in SEEDS])
    alike = replace(homes, subject_shift=0.0, sensors=("acc", "gyro"))
    show(f"{title}; all subjects alike", [alike.load(Streams(seed)) for seed in SEEDS])
    remote = ("csi", "mmwave", "lidar", "depth")
    crowd = World(clients=6, rooms=6, windows=210, people=(0, 20), target="count", sensors=remote)
    show(
        "0 to 20 people, 6 rooms x 210 windows; chance 0.05, error 5.2 for always saying 10",
        [crowd.load(Streams(seed)) for seed in SEEDS],
    )


if __name__ == "__main__":
    main()

"""The format of the windows that a fleet's models take: what somebody who has a trained model, but
not the data that it was trained on, has to know of a new recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from communis.core import tasks
from communis.core.arrays import Array
from communis.core.contract import Modality, Task
from communis.core.errors import CommunisError
from communis.data.recordings.recording import Kind
from communis.data.recordings.windows import Windows
from communis.fleet.availability.detail import coarse_shape, coarsen


@dataclass(frozen=True)
class WindowFormat:
    seconds: float  # length of a window
    shapes: Mapping[Modality, tuple[int, ...]]  # of a window, channels first, in full detail
    kinds: Mapping[Modality, Kind]
    units: Mapping[Modality, str]
    rates: Mapping[Modality, float]  # Hz; a window need not have a whole number of steps
    labels: tuple[str, ...]  # class names
    task: Task

    @classmethod
    def of(cls, windows: Windows) -> WindowFormat:
        modalities = windows.modalities
        return cls(
            windows.seconds,
            {m: tuple(windows.inputs[m].shape[1:]) for m in modalities},
            {m: windows.kinds.get(m, "series") for m in modalities},
            {m: windows.units.get(m, "") for m in modalities},
            {m: windows.rates.get(m) or _steps(windows, m) / windows.seconds for m in modalities},
            windows.labels,
            windows.task,
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; their numbers where they have no names, and none where the
        predictions are no classes."""
        if self.task.classes != self.task.outputs:
            return ()
        return self.labels or tuple(str(number) for number in range(self.task.classes))

    @property
    def coarse(self) -> WindowFormat:
        """The format of sensors with less detail."""
        shapes = {m: coarse_shape(shape, self.kinds[m]) for m, shape in self.shapes.items()}
        rates = {
            m: rate * shapes[m][-1] / self.shapes[m][-1] if self.kinds[m] == "series" else rate
            for m, rate in self.rates.items()
        }
        return replace(self, shapes=shapes, rates=rates)

    def sensed(self, modality: Modality, x: Array) -> Array:
        """Returns windows (n, ...) of a sensor in full detail as they are in this format."""
        if tuple(x.shape[1:]) == tuple(self.shapes[modality]):
            return x
        return coarsen(x, self.kinds[modality])

    def written(self) -> dict[str, Any]:
        """Returns this format as a table for JSON files, which `read` reads."""
        modalities = {
            m: {
                "shape": self.shapes[m],
                "kind": self.kinds[m],
                "unit": self.units[m],
                "rate": self.rates[m],
            }
            for m in self.shapes
        }
        task = tasks.written(self.task)
        return {"seconds": self.seconds, "modalities": modalities, "task": task}

    @classmethod
    def read(cls, table: Mapping[str, Any], labels: tuple[str, ...]) -> WindowFormat:
        """Returns the format that `written` wrote. labels: the class names."""
        if not table.get("task"):
            raise CommunisError("the task is one of another library, and cannot be read back")
        modalities = table["modalities"]
        return cls(
            table["seconds"],
            {m: tuple(entry["shape"]) for m, entry in modalities.items()},
            {m: entry["kind"] for m, entry in modalities.items()},
            {m: entry["unit"] for m, entry in modalities.items()},
            {m: float(entry["rate"]) for m, entry in modalities.items()},
            labels,
            tasks.read(table["task"]),
        )


def _steps(windows: Windows, modality: Modality) -> int:
    """Returns the steps of a window; of images the frames."""
    shape = windows.inputs[modality].shape[1:]
    return int(shape[0] if windows.kinds.get(modality) == "image" else shape[-1])

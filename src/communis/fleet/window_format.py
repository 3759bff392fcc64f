"""The format of the windows that a fleet's models take: what somebody who has a trained model, but
not the data that it was trained on, has to know of a new recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from communis.core import tasks
from communis.core.contract import Modality, Task
from communis.core.errors import CommunisError
from communis.data.recordings.recording import Kind
from communis.data.recordings.windows import Windows


@dataclass(frozen=True)
class WindowFormat:
    seconds: float  # length of a window
    shapes: Mapping[Modality, tuple[int, ...]]  # of a window, channels first, in full detail
    kinds: Mapping[Modality, Kind]
    units: Mapping[Modality, str]
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

    def rate(self, modality: Modality) -> float:
        """Returns the steps of a modality per second; of images the frames."""
        shape = self.shapes[modality]
        steps = shape[0] if self.kinds[modality] == "image" else shape[-1]
        return steps / self.seconds

    def written(self) -> dict[str, Any]:
        """Returns this format as a table for JSON files, which `read` reads."""
        modalities = {
            m: {"shape": self.shapes[m], "kind": self.kinds[m], "unit": self.units[m]}
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
            labels,
            tasks.read(table["task"]),
        )

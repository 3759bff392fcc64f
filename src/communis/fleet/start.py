"""What the models of a fleet begin with instead of random values: the common model of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from communis.core.contract import Model, Path
from communis.core.errors import CommunisError
from communis.core.state import State


@dataclass(frozen=True)
class Start:
    """The common model of a finished run, by architecture."""

    run: str  # its folder
    models: Mapping[str, State]
    digests: Mapping[str, str]  # of the files of the models
    labels: Sequence[str] = ()  # the classes that the run learned
    same_data: bool = False  # the run learned from the dataset that this fleet has

    def fill(self, model: Model, architecture: str) -> list[Path]:
        """Writes the learned values into a model. Returns the paths that keep their own values,
        because the run has none of this shape for them."""
        if architecture not in self.models:
            raise CommunisError(
                f"fleet.start = {self.run}: has no common model {architecture!r}, but "
                f"{', '.join(sorted(self.models))}; name one of these in fleet.models"
            )
        # Where clients have different models, a path ends with a mark of its model.
        learned = {path.partition("@")[0]: t for path, t in self.models[architecture].items()}
        own = State.all(model)
        fitting = {}
        for path, tensor in own.items():
            value = learned.get(path.partition("@")[0])
            if value is not None and value.shape == tensor.shape:
                fitting[path] = value
        if not fitting:
            raise CommunisError(
                f"fleet.start = {self.run}: nothing of its model {architecture} fits this fleet, "
                "whose sensors, rates or classes are others"
            )
        State(fitting).load_into(model)
        return [path for path in own if path not in fitting]

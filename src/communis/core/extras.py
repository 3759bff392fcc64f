"""Optional parts: what each extra brings, whether it is installed, and how to get it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType

from communis.core.errors import CommunisError


@dataclass(frozen=True)
class Extra:
    module: str  # its presence tells whether the extra is installed
    purpose: str

    @property
    def installed(self) -> bool:
        return find_spec(self.module) is not None


EXTRAS = {
    "watch": Extra("seglearn", "the real smartwatch recordings (data source `watch`)"),
    "edf": Extra("pyedflib", "reading EDF+ recordings such as Sleep-EDF"),
    "privacy": Extra("dp_accounting", "accounting for differential privacy"),
    "moment": Extra("peft", "adapters on the MOMENT time-series model"),
    "flower": Extra("flwr", "deployment on real devices with Flower"),
    "track": Extra("tensorboard", "curves in TensorBoard"),
    "docs": Extra("zensical", "building the documentation"),
    "dev": Extra("pytest", "running the tests and checks"),
}


def require(extra: str) -> ModuleType:
    """The module behind an extra, or an error with the command that installs it."""
    found = EXTRAS[extra]
    if not found.installed:
        raise CommunisError(
            f"{found.purpose} needs the package {found.module}, which is not installed: "
            f"{command(extra)}"
        )
    return importlib.import_module(found.module)


def command(extra: str) -> str:
    return f"pip install 'communis[{extra}]'"

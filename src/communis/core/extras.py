"""Extras: the optional parts of the library, whether they are installed, and how to install
them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType

from communis.core.errors import CommunisError


@dataclass(frozen=True)
class Extra:
    module: str  # the extra counts as installed if this module exists
    purpose: str
    packages: tuple[str, ...] = ()  # as in pyproject.toml; empty: useful in a clone only

    @property
    def installed(self) -> bool:
        return find_spec(self.module) is not None


EXTRAS = {
    "edf": Extra("pyedflib", "reading EDF+ recordings such as Sleep-EDF", ("pyedflib>=0.1.36",)),
    "privacy": Extra(
        "dp_accounting", "accounting for differential privacy", ("dp-accounting>=0.6",)
    ),
    "moment": Extra(
        "peft", "adapters on the MOMENT time-series model", ("peft>=0.18", "transformers>=5")
    ),
    "export": Extra(
        "onnxruntime",
        "ONNX files of trained models",
        ("onnx>=1.17", "onnxscript>=0.5", "onnxruntime>=1.20"),
    ),
    "ray": Extra("ray", "running on a Ray cluster", ("ray>=2.40",)),
    "docs": Extra("zensical", "building the documentation"),
    "dev": Extra("pytest", "running the tests and checks"),
}


def require(extra: str) -> ModuleType:
    """Returns the module of an extra. If it is missing, the error names the command that installs
    it."""
    about = EXTRAS[extra]
    if not about.installed:
        raise CommunisError(
            f"{about.purpose} needs the package {about.module}, which is not installed: "
            f"{command(extra)}"
        )
    return importlib.import_module(about.module)


def command(extra: str) -> str:
    """Returns the command that installs an extra. It names the packages of the extra, because
    communis itself is not on a package index."""
    packages = EXTRAS[extra].packages
    if not packages:
        return f"pip install --editable '.[{extra}]' in the clone"
    quoted = " ".join(f"'{package}'" for package in packages)
    return f"pip install {quoted}"

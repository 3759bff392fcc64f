"""Adds the compiled convolution to the wheel where a C compiler is present; without one, the wheel
is the same for all machines and the library computes with torch alone."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

KERNELS = Path("src", "communis", "models", "kernels")


class Kernels(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        built = runpy.run_path(str(Path(self.root) / KERNELS / "build.py"))["build"]()
        if built:
            build_data["artifacts"] += [str(KERNELS / path.name) for path in built]
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{next(platform_tags())}"

"""Compiles convpool.c, once per instruction set, into the folder of this file.

hatch_build.py calls it when the package is installed. Where a compiler comes later, `python -m
communis.models.kernels.build` does the same. It uses the standard library alone, as nothing else is
installed at that time. The name of a library contains a digest of its source and of the compiler's
options, so a library of another version is never loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "convpool.c"
OPTIONS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-ffp-contract=fast")
# By name of the instruction set, as torch.backends.cpu.get_cpu_capability() says it.
TARGETS = {
    "AVX512": (
        "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512",
    ),
    "AVX2": ("-mavx2", "-mfma"),
}  # fmt: skip


def library(target: str, folder: Path = HERE) -> Path:
    """Returns where the library for this instruction set is, if it was built."""
    digest = hashlib.sha256(SOURCE.read_bytes())
    digest.update(" ".join((*OPTIONS, *TARGETS[target])).encode())
    return folder / f"convpool-{target.lower()}-{digest.hexdigest()[:16]}.so"


def build(folder: Path = HERE) -> list[Path]:
    """Builds all libraries that are missing and returns them: none on other systems than Linux on
    x86-64, where nothing was measured, and none without a working compiler ($CC, or cc)."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return []
    built = []
    for target, options in TARGETS.items():
        path = library(target, folder)
        if path.exists() or _compiled(path, options):
            built.append(path)
    return built


def _compiled(path: Path, options: tuple[str, ...]) -> bool:
    """Whether it could be compiled. It is renamed at the end: no process loads half a library."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    command = [*compiler, *OPTIONS, *options, str(SOURCE), "-o", str(partial)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"no kernel {path.name}: {error}", file=sys.stderr)
        return False
    if done.returncode:
        print(f"no kernel {path.name}: {done.stderr[-500:]}", file=sys.stderr)
        partial.unlink(missing_ok=True)
        return False
    partial.replace(path)
    return True


if __name__ == "__main__":
    for built_path in build():
        print(built_path)

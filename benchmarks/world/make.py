"""How long it takes to make a world: `python benchmarks/world/make.py`, one thread.

Processor seconds, the least of several runs: the machine may be busy with something else.
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import resource
import sys
import time
from typing import Any

from communis.core.streams import Streams
from communis.data.sources.world import World


def seconds(repeats: int, **settings: Any) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        World(**settings).load(Streams(0))
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    full: dict[str, Any] = {"clients": 100, "windows": 200}
    print(f"100 clients x 200 windows, default sensors: {seconds(repeats, **full):.1f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    data = World(**full).load(Streams(0))
    held = sum(values.nbytes for values in data.inputs.values()) / 2**20
    print(f"windows hold {held:.0f} MiB; the process never had more than {peak:.0f} MiB")
    del data
    for sensor in World().sensors:
        alone = seconds(repeats, clients=20, windows=200, sensors=(sensor,))
        print(f"  {sensor} alone: {5 * alone:.1f} s per 100 clients x 200 windows")
    crowd: dict[str, Any] = {"target": "count", "people": (0, 20), "sensors": ("csi",)}
    print(
        "6 clients x 210 windows, CSI of 0 to 20 people, default resolution: "
        f"{seconds(repeats, clients=6, rooms=6, windows=210, **crowd):.1f} s"
    )
    fine: dict[str, Any] = {"csi_subcarriers": 242, "csi_antennas": 1, "csi_rate": 250.0, **crowd}
    print(
        "1 client x 63 windows, CSI of 0 to 20 people, 1000 packets x 242 subcarriers: "
        f"{seconds(repeats, clients=1, windows=63, **fine):.1f} s"
    )


if __name__ == "__main__":
    main()

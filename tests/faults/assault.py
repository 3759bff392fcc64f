"""An hour of faults on purpose, and a table of what was survived: `make assault`.

    python -m tests.faults.assault --minutes 60 [--only cuts]

cuts      power cuts on a real file system: ext4 in an image; a copy of the image is the disk as the
          cut left it. Needs root and Linux
kills     SIGKILL of the whole process at a random moment, then resume
damage    a bit flipped, a file cut short or gone, then resume
messages  mutated messages of a client

A run that is continued must end with the numbers that it would have had; a refusal must name a
file. Everything else counts as harm, and the exit code says so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from communis import CommunisError, tables, wire
from tests.faults.test_damage import cut, flipped, gone, run
from tests.faults.test_messages import mutated
from tests.faults.test_power_cuts import content
from tests.fleets import make

ROUNDS = 40  # of a run that is interrupted: some seconds
IMAGE = 256 << 20  # bytes of the file system that is cut
WORK = f"""
import sys
from pathlib import Path
from tests.faults.test_damage import run
run(Path(sys.argv[1]), rounds={ROUNDS})
"""
Outcome = str  # "survived", "refused", or what went wrong


def interrupted(folder: Path, seconds: float, cut: Callable[[], None]) -> None:
    """A run in a process of its own that is stopped after so long, `cut`, and killed."""
    process = subprocess.Popen([sys.executable, "-c", WORK, str(folder)], env=os.environ)
    deadline = time.monotonic() + 60
    while not (folder / "records.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)  # the imports are not what is to be interrupted
    time.sleep(seconds)
    process.send_signal(signal.SIGSTOP)
    cut()
    process.kill()
    process.wait()


def resumed(folder: Path, expected: dict[str, object]) -> Outcome:
    try:
        run(folder, rounds=ROUNDS)
    except CommunisError as error:
        return "refused" if str(folder) in str(error) else f"a refusal without a file: {error}"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"
    found = content(folder)
    other = [name for name in expected if found.get(name) != expected[name]]
    return f"other numbers: {', '.join(other[:3])}" if other else "survived"


def power_cut(scratch: Path, expected: dict[str, object], rng: np.random.Generator) -> Outcome:
    image, copy = scratch / "disk.img", scratch / "cut.img"
    with image.open("wb") as file:
        file.truncate(IMAGE)
    _command("mkfs.ext4", "-q", "-F", str(image))
    with _mounted(image, scratch / "disk") as disk:
        interrupted(
            disk / "run",
            float(rng.uniform(0, 3)),
            lambda: _command("cp", "--sparse=always", str(image), str(copy)),
        )
    with _mounted(copy, scratch / "after") as after:
        found = scratch / "run"
        shutil.copytree(after / "run", found) if (after / "run").exists() else found.mkdir()
    return resumed(found, expected)


def kill(scratch: Path, expected: dict[str, object], rng: np.random.Generator) -> Outcome:
    interrupted(scratch / "run", float(rng.uniform(0, 3)), lambda: None)
    return resumed(scratch / "run", expected)


def damage(scratch: Path, expected: dict[str, object], rng: np.random.Generator) -> Outcome:
    run(scratch / "run", rounds=int(rng.integers(2, 6)))
    files = sorted(p for p in (scratch / "run").rglob("*") if p.is_file() and p.stat().st_size)
    hurt = files[int(rng.integers(len(files)))]
    (flipped, cut, gone)[int(rng.integers(3))](hurt, rng)
    room = hurt.parent.name
    known = {name: data for name, data in expected.items() if name != "config.toml"}
    if room in tables.SCHEMAS:  # it is read when somebody looks at the results
        known = {name: data for name, data in known.items() if Path(name).parent.name != room}
    outcome = resumed(scratch / "run", known)
    if outcome == "survived" and room in tables.SCHEMAS:
        outcome = looked_at(scratch / "run", room, hurt.name, expected)
    return outcome if outcome in ("survived", "refused") else f"{hurt.name}: {outcome}"


def looked_at(folder: Path, room: str, name: str, expected: dict[str, object]) -> Outcome:
    """Whether a table that was hurt is read as it was, or refused."""
    path = folder / room / name
    if not path.exists():
        return "survived"  # of one that is gone the rest is what it was
    try:
        found = tables.read(folder, room)
    except CommunisError:
        return "refused"
    whole = pq.read_table(pa.BufferReader(expected[f"{room}/{name}"]), schema=tables.SCHEMAS[room])
    round = int(path.stem)
    same = found.filter(pc.field("round") == round).equals(whole)
    return "survived" if same else "another table was read"


def messages(scratch: Path, expected: dict[str, object], rng: np.random.Generator) -> Outcome:
    method = make("fedavg")
    *_, up = wire.payload_types(type(method))
    message = (scratch.parent / "message").read_bytes()
    for _ in range(500):
        try:
            wire.decode(mutated(message, rng), up)
        except CommunisError:
            continue
        except Exception as error:
            return f"traceback: {type(error).__name__}: {error}"
    return "survived"


FAULTS: dict[str, Callable[[Path, dict[str, object], np.random.Generator], Outcome]] = {
    "cuts": power_cut,
    "kills": kill,
    "damage": damage,
    "messages": messages,
}


@contextmanager
def _mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir()
    _command("mount", "-o", "loop", str(image), str(at))
    try:
        yield at
    finally:
        _command("umount", str(at))


def _command(*words: str) -> None:
    subprocess.run(words, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--only", choices=FAULTS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    names = list(asked.only or FAULTS)
    if "cuts" in names and (sys.platform != "linux" or os.geteuid() != 0):
        print("power cuts need root on Linux: left out")
        names.remove("cuts")
    found: dict[str, Counter[Outcome]] = {name: Counter() for name in names}
    with tempfile.TemporaryDirectory(prefix="assault-") as home:
        run(Path(home) / "whole", rounds=ROUNDS)
        expected = content(Path(home) / "whole")
        (Path(home) / "message").write_bytes(_message())
        end, number = time.monotonic() + 60 * asked.minutes, 0
        while time.monotonic() < end:
            for name in names:
                rng = np.random.default_rng([asked.seed, number])
                scratch = Path(home) / f"{name}{number}"
                scratch.mkdir()
                found[name][FAULTS[name](scratch, expected, rng)] += 1
                shutil.rmtree(scratch)
            number += 1
    print("| fault | tried | survived | refused by name | harm |\n|---|---|---|---|---|")
    harm = 0
    for name, outcomes in found.items():
        bad = {k: n for k, n in outcomes.items() if k not in ("survived", "refused")}
        harm += sum(bad.values())
        said = "; ".join(f"{n} x {k}" for k, n in bad.items()) or "0"
        row = (name, outcomes.total(), outcomes["survived"], outcomes["refused"], said)
        print("| " + " | ".join(map(str, row)) + " |")
    return min(harm, 1)


def _message() -> bytes:
    """What a client of the small fleet sends."""
    from communis import Plan, Run
    from communis.backends.mock import Mock, corrupt
    from tests.fleets import mixed_fleet

    seen: list[bytes] = []
    with Run(mixed_fleet(), make("fedavg"), Plan(rounds=1, workers=1, eval_every=0)) as made:
        made.backend = Mock(made.backend, corrupt(lambda data: seen.append(data) or data, 0))
        list(made)
    return seen[0]


if __name__ == "__main__":
    sys.exit(main())

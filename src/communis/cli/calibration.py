"""The implementation of the command `device calibrate`."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from rich.progress import BarColumn, Progress, TextColumn
from torch import Tensor

from communis.cli.console import err, out, say
from communis.cli.device import table_of
from communis.core.contract import Batch, Card, Client, Model, Output
from communis.core.errors import CommunisError
from communis.core.samples import TensorSamples
from communis.core.streams import Streams
from communis.core.tasks import Classification
from communis.fleet import device
from communis.fleet.device.calibrate import Energy, Speed, profile, repeat
from communis.methods.parts.training import Recipe
from communis.models.flops import Meter
from communis.models.network import initialise
from communis.models.zoo import ZOO, architecture
from communis.run.backends.machine import keep_freed_memory, one_thread

SHAPES = {"acc": (9, 256), "gyro": (9, 256), "hr": (1, 256), "mag": (9, 256)}  # PAMAP2 in RELIEF
CLASSES = 12
BATCH = 32
REPETITIONS = 5
IDLE = 2.0  # seconds without work, over which the idle power is measured


def calibrate(
    name: str,
    into: Path,
    model: str,
    seconds: float,
    power_active: float | None,
    power_idle: float | None,
    power_radio: float | None,
    up: float | None,
    down: float | None,
    json: bool,
) -> None:
    options = {
        "power_active": power_active,
        "power_idle": power_idle,
        "power_radio": power_radio,
        "up": up,
        "down": down,
    }
    given = {key: value for key, value in options.items() if value is not None}
    _refuse_early(name, into, given)
    what = f"{model}, batch {BATCH}, one thread"
    power = {}
    energy = Energy()
    if energy.readable and power_idle is None:
        power["power_idle"] = _watts_idle(energy)
    start = energy.joules() if energy.readable else 0.0
    began = time.perf_counter()
    speed = _measured(model, seconds, json)
    if energy.readable:
        power["power_active"] = (energy.joules() - start) / (time.perf_counter() - began)
    measured = profile(name, speed, what, power, given)
    replaced = device.write(into, measured)
    if json:
        about = {"file": into, "replaced": replaced, "spread": speed.spread}
        return say({"event": "device", **about, **asdict(measured)})
    out.print(table_of([asdict(measured)]))
    out.print(f"\n{measured.source}", soft_wrap=True)
    if speed.spread > 0.2:
        out.print(
            "The repetitions differ much, as if other programs were running. Repeat the command "
            "when the machine is idle.",
            soft_wrap=True,
        )
    done = "replaced" if replaced else "added"
    out.print(f"{done} [{name}] in {into}")
    out.print(f'Use it: fleet.profiles = "{into}", and device = "{name}" in a role.')


def _refuse_early(name: str, into: Path, given: dict[str, float]) -> None:
    """Refuses a bad name, value or file before anything is measured."""
    profile(name, Speed([1.0]), "", {}, given)
    if into.exists():
        device.load(into)
    elif not into.absolute().parent.is_dir():
        raise CommunisError(f"{into}: there is no folder {into.absolute().parent}; make it first")


def _measured(model: str, seconds: float, json: bool) -> Speed:
    recipe = Recipe(lr=1e-3, batch=BATCH)
    client = _client(model)
    forward, backward = Meter().spent(client.model, _loss, client.train, "", 1.0)
    rates: list[float] = []  # FLOP/s of each repetition
    columns = TextColumn("{task.description}"), BarColumn(bar_width=30)
    with one_thread(), Progress(*columns, console=err, disable=json, transient=True) as bar:
        keep_freed_memory()
        task = bar.add_task(f"training {model}", total=REPETITIONS)
        work = repeat(lambda: recipe.train(client), forward + backward, seconds, REPETITIONS)
        for rate in work:
            rates.append(rate)
            bar.update(task, advance=1, description=f"training {model}: {rate / 1e9:.3g} GFLOP/s")
            if json:
                say({"event": "repetition", "number": len(rates), "flops": rate})
    return Speed(rates)


def _client(model: str) -> Client:
    """A client with all sensors and one batch of noise: only the time of training matters."""
    weights = {"weights": "random"} if model in ZOO and ZOO[model].pretrained else {}
    kind = architecture(model, **weights)
    streams = Streams(0)
    task = Classification(CLASSES)
    with streams.torch("build"):
        network: Model = kind.build(SHAPES, task.outputs)
    initialise(network, streams)
    draw = streams.generator("calibrate")
    inputs = {
        m: torch.from_numpy(draw.standard_normal((BATCH, steps, channels), dtype=np.float32))
        for m, (channels, steps) in SHAPES.items()
    }
    present = {m: torch.ones(BATCH, dtype=torch.bool) for m in SHAPES}
    data = TensorSamples(inputs, present, torch.arange(BATCH) % CLASSES)
    card = Card(0, tuple(SHAPES), {}, BATCH, dict.fromkeys(SHAPES, BATCH), {}, model)
    return Client(card, network, task, data, data, data, 0, streams)


def _loss(output: Output, batch: Batch) -> Tensor:
    return Classification(CLASSES).loss(output.prediction, batch.target)


def _watts_idle(energy: Energy) -> float:
    start = energy.joules()
    began = time.perf_counter()
    time.sleep(IDLE)
    return (energy.joules() - start) / (time.perf_counter() - began)

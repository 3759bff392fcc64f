"""The command line's `device` part: list, show, calibrate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from communis.cli.console import Json, Stacked, out, say
from communis.cli.lazily import done_by
from communis.cli.listing import Listing
from communis.core.errors import CommunisError
from communis.core.plugins import nearest
from communis.run import keys

app = typer.Typer(
    cls=Listing, help="Devices: profiles for the clock, and measuring the one you sit at."
)
NUMBERS = ("GFLOP/s", "W active", "W idle", "W radio", "Mbit/s up", "down")
Profiles = Annotated[Path | None, typer.Option(help="A TOML file with profiles of your own.")]


@app.command("list")
def list_(profiles: Profiles = None, json: Json = False) -> None:
    """List the device profiles that roles can name: the presets, and those of a file.

    A profile of a file goes before a preset of the same name. In a configuration, fleet.profiles
    names the file and every role names its device.

    Example: communis device list --profiles devices.toml
    """
    found = _known(profiles).values()
    if json:
        return say({"event": "devices", "profiles": list(found)})
    out.print(table_of(found))
    out.print()
    for one in found:
        out.print(f"{one['name']}: {one['source'] or 'source not said'}", soft_wrap=True)
    out.print(
        "Measure this machine: communis device calibrate --name NAME --into devices.toml",
        soft_wrap=True,
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A device; see `communis device list`.")],
    profiles: Profiles = None,
    json: Json = False,
) -> None:
    """Show a device profile and where its numbers come from.

    Example: communis device show relief-low
    """
    known = _known(profiles)
    if name not in known:
        hint = nearest(name, list(known))
        raise CommunisError(f"no device profile {name!r}{hint}; there are {', '.join(known)}")
    if json:
        return say({"event": "device", **known[name]})
    out.print(table_of([known[name]]))
    out.print(f"\n{known[name]['source'] or 'source not said'}", soft_wrap=True)
    out.print(f'Use it: device = "{name}" in a role.')


def _known(profiles: Path | None) -> dict[str, Mapping[str, Any]]:
    """The profiles that come along, and those of a file."""
    found: dict[str, Mapping[str, Any]] = dict(keys.devices())
    if profiles is None:
        return found
    # Here, as only a file has to be read by the code that takes torch.
    from communis.fleet.device import load

    return found | {name: asdict(one) for name, one in load(profiles).items()}


def table_of(profiles: Iterable[Mapping[str, Any]]) -> Stacked:
    table = Stacked("device", *NUMBERS, numbers=NUMBERS)
    for one in profiles:
        speed = one["flops"] / 1e9
        table.add_row(
            one["name"],
            f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}",
            *(f"{one[key]:.3g}" for key in ("power_active", "power_idle", "power_radio")),
            *(f"{one[key] / 1e6:.4g}" for key in ("up", "down")),
        )
    return table


@app.command()
@done_by("calibration")
def calibrate(
    name: Annotated[str, typer.Option(help="The profile's name, as roles will use it.")],
    into: Annotated[
        Path, typer.Option(help="The TOML file that gets it; other profiles in it stay.")
    ] = Path("devices.toml"),
    model: Annotated[str, typer.Option(help="What is trained; see `communis models`.")] = "cnn",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to train.")] = 5.0,
    power_active: Annotated[
        float | None, typer.Option(help="W while it computes; else measured (RAPL), or 15.")
    ] = None,
    power_idle: Annotated[
        float | None, typer.Option(help="W while it waits; else measured, or .2 of active.")
    ] = None,
    power_radio: Annotated[
        float | None, typer.Option(help="W while it sends or receives; else .6 of active.")
    ] = None,
    up: Annotated[float | None, typer.Option(help="bit/s from the device; else 20e6.")] = None,
    down: Annotated[float | None, typer.Option(help="bit/s to the device; else 20e6.")] = None,
    json: Json = False,
) -> None:
    """Measure this machine and write it as a device profile.

    Trains a model on made windows, as a client would: batches of 32, one thread. The FLOP/s that
    the best of five repetitions reaches go into the profile. Power is measured where Linux lets
    you read its energy counters, of the processor alone; a link is not measured at all. What was
    neither measured nor given is assumed, and the profile's source says so.

    Example: communis device calibrate --name my-laptop --power-active 28 --up 10e6 --down 50e6
    """

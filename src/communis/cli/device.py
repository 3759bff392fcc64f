"""The commands `device list`, `show` and `calibrate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from communis.cli.console import Json, Stacked, out, say
from communis.cli.help import Commands
from communis.cli.lazily import done_by
from communis.cli.listing import Listing
from communis.core.errors import CommunisError
from communis.core.plugins import nearest
from communis.run import keys

app = Commands(cls=Listing, help="Device profiles: list them, or measure this machine.")
NUMBERS = ("GFLOP/s", "W active", "W idle", "W radio", "Mbit/s up", "down")
Profiles = Annotated[Path | None, typer.Option(help="A TOML file with profiles of your own.")]


@app.command("list")
def list_(profiles: Profiles = None, json: Json = False) -> None:
    """List the device profiles that roles can name.

    These are the presets, and the profiles of a file. A profile of a file replaces a preset of the
    same name. In a configuration, fleet.profiles names the file and every role names its device.

    Example: communis device list --profiles devices.toml
    """
    listed = _known(profiles).values()
    if json:
        return say({"event": "devices", "profiles": list(listed)})
    out.print(table_of(listed))
    out.print()
    for profile in listed:
        out.print(f"{profile['name']}: {_source(profile)}", soft_wrap=True)
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
    out.print(f"\n{_source(known[name])}", soft_wrap=True)
    out.print(f'Use it: device = "{name}" in a role.')


def _known(profiles: Path | None) -> dict[str, Mapping[str, Any]]:
    """The preset profiles, and those of a file."""
    presets: dict[str, Mapping[str, Any]] = dict(keys.devices())
    if profiles is None:
        return presets
    # Imported here because it needs torch, and only a file has to be read by it.
    from communis.fleet.device import load

    return presets | {name: asdict(profile) for name, profile in load(profiles).items()}


def _source(profile: Mapping[str, Any]) -> str:
    return str(profile["source"] or "source not given")


def table_of(profiles: Iterable[Mapping[str, Any]]) -> Stacked:
    table = Stacked("device", *NUMBERS, numbers=NUMBERS)
    for profile in profiles:
        speed = profile["flops"] / 1e9
        table.add_row(
            profile["name"],
            f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}",
            *(f"{profile[key]:.3g}" for key in ("power_active", "power_idle", "power_radio")),
            *(f"{profile[key] / 1e6:.4g}" for key in ("up", "down")),
        )
    return table


@app.command()
@done_by("calibration")
def calibrate(
    name: Annotated[str, typer.Option(help="The name of the profile, as roles use it.")],
    into: Annotated[
        Path, typer.Option(help="The TOML file to write it to; its other profiles are kept.")
    ] = Path("devices.toml"),
    model: Annotated[
        str, typer.Option(help="The model that is trained; see `communis models`.")
    ] = "cnn",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to train.")] = 5.0,
    power_active: Annotated[
        float | None, typer.Option(help="W while computing; default: measured (RAPL), or 15.")
    ] = None,
    power_idle: Annotated[
        float | None, typer.Option(help="W while waiting; default: measured, or 0.2 of active.")
    ] = None,
    power_radio: Annotated[
        float | None, typer.Option(help="W while sending or receiving; default: 0.6 of active.")
    ] = None,
    up: Annotated[float | None, typer.Option(help="bit/s from the device; default: 20e6.")] = None,
    down: Annotated[float | None, typer.Option(help="bit/s to the device; default: 20e6.")] = None,
    json: Json = False,
) -> None:
    """Measure this machine and write a device profile.

    The command trains a model on generated windows as a client does, in batches of 32 on one
    thread. The profile gets the FLOP/s of the best of five repetitions. Power is measured where
    Linux permits to read the energy counters, which cover the processor only; the link is not
    measured. What is neither measured nor given is assumed, and the source of the profile says so.

    Example: communis device calibrate --name my-laptop --power-active 28 --up 10e6 --down 50e6
    """

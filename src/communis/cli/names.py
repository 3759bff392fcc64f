"""The commands methods, presets, settings and extras: what there is to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from communis.cli.console import Json, Stacked, listing, out, say
from communis.cli.listing import Named, begins
from communis.core import plugins
from communis.core.errors import CommunisError
from communis.core.extras import EXTRAS, command
from communis.run import keys
from communis.run import presets as files

methods = typer.Typer(cls=Named, help="List the methods, or show the settings of one.")
presets = typer.Typer(cls=Named, help="List the experiments that come along, or show one.")


def complete_method(typed: str) -> list[str]:
    return begins(plugins.names("methods"), typed)


def complete_preset(typed: str) -> list[str]:
    return begins(files.names(), typed)


def complete_table(typed: str) -> list[str]:
    return begins([where for where, _ in keys.tables(keys.schema())], typed)


@methods.command("list")
def list_methods(json: Json = False) -> None:
    """List the methods."""
    entries = {name: one["description"] for name, one in keys.entries("method").items()}
    if json:
        return say({"event": "methods", "methods": entries})
    out.print(listing(("method", "what it does"), entries.items()))
    out.print("\nSettings of one: communis methods show NAME")


@methods.command("show")
def show_method(
    name: Annotated[str, typer.Argument(help="A method.", autocompletion=complete_method)],
    json: Json = False,
) -> None:
    """Show a method: its paper, deviations from it, and settings.

    Example: communis methods show fedavg
    """
    table = described("method", "methods", name)
    if json:
        about = {
            key: {
                "default": one.get("default"),
                "meaning": one.get("description", ""),
                "values": keys.values(one),
            }
            for key, one in keys.settings(table).items()
        }
        return say({"event": "method", "method": name, "settings": about})
    out.print(table["description"])
    out.print()
    out.print(key_table(table, "method"))


def described(table: str, room: str, name: str) -> Mapping[str, Any]:
    """The settings of a method or dataset and what is said of it; of a third-party one from its
    own code, which is loaded for that."""
    if ":" not in name and name in plugins.names(room):
        return keys.definition(table, name)
    plugins.trust_asked(name)
    kind = plugins.find(room, name)
    # Here, as a third-party plug-in is the only one whose code is read: its imports take seconds.
    import inspect

    from communis.core.fields import table_schema

    return {**table_schema(kind), "description": inspect.getdoc(inspect.getmodule(kind)) or ""}


def key_table(table: Mapping[str, Any], where: str) -> Stacked:
    """The keys of a table: what they may be, by default are, and mean."""
    rows = [
        (
            f"{where}.{key}" if where else key,
            keys.default(one) or ("required" if key in table.get("required", ()) else ""),
            _meaning(one),
        )
        for key, one in keys.settings(table).items()
    ]
    return listing(("setting", "default", "meaning"), rows)


def _meaning(key: Mapping[str, Any]) -> str:
    """What a key means, and which values it takes where these are not told by the default."""
    said = key.get("description", "")
    values = keys.values(key)
    if "enum" in key or "default" not in key or key["default"] in ([], {}):
        return f"{said} [{values}]".strip()
    return str(said)


@presets.command("list")
def list_presets(json: Json = False) -> None:
    """List the experiments that come along."""
    entries = {name: files.about(name) for name in files.names()}
    if json:
        return say({"event": "presets", "presets": entries})
    out.print(listing(("preset", "what it is"), entries.items()))
    out.print("\nRun one: communis run NAME. Compare methods on it: communis compare --on NAME.")
    out.print(
        "Look at one: communis presets show NAME. Change one: communis new my.toml --from NAME."
    )


@presets.command("show")
def show_preset(
    name: Annotated[str, typer.Argument(help="A preset.", autocompletion=complete_preset)],
    json: Json = False,
) -> None:
    """Print the file of a preset.

    Example: communis presets show watch
    """
    text = files.text(name)
    if json:
        return say({"event": "preset", "preset": name, "text": text})
    out.print(text, soft_wrap=True, end="")


def settings(
    table: Annotated[
        str,
        typer.Argument(
            help="One table, such as fleet or fleet.dropout; else all.",
            autocompletion=complete_table,
        ),
    ] = "",
    json: Json = False,
) -> None:
    """List the keys of a configuration: meaning, default and allowed values.

    Example: communis settings run

    The keys of [method] and [data] depend on their name; `methods show NAME` and `data show NAME`
    list them.
    """
    found = dict(keys.tables(keys.schema()))
    if table in ("method", "data"):
        plural = {"method": "methods", "data": "data"}[table]
        raise CommunisError(f"[{table}] has the keys of what it names: communis {plural} show NAME")
    if table and table not in found:
        known = list(found)
        hint = plugins.nearest(table, known) or keys.elsewhere(table)
        raise CommunisError(f"no table {table!r}{hint}; there are {', '.join(known)}")
    chosen = {
        w: t for w, t in found.items() if not table or w == table or w.startswith(f"{table}.")
    }
    if json:
        return say({"event": "settings", "tables": chosen})
    if not table:
        out.print("A key at the top of the file, then [TABLE]s; in lists of tables, [[TABLE]].\n")
        out.print(key_table(keys.schema(), ""))
    for where, one in chosen.items():
        head = f"[[{where}]]" if "items" in one else f"[{where}]"
        out.print(f"\n{head}  {one.get('description', '')}\n", style="bold")
        out.print(key_table(keys.inner(one), where))
    if not table:
        out.print("\n[method] has the keys of its method: communis methods show NAME")
        out.print("[data] has the keys of its dataset: communis data show NAME")
        out.print(f"\nFor editors, as JSON Schema: {keys.FILE}", soft_wrap=True)


def extras(json: Json = False) -> None:
    """List the optional parts, what they are for and which are installed."""
    if json:
        return say({"event": "extras", "extras": {n: e.installed for n, e in EXTRAS.items()}})
    table = Stacked("extra", "installed", "install with", "for", text=["for"])
    for name, extra in EXTRAS.items():
        table.add_row(name, "yes" if extra.installed else "no", command(name), extra.purpose)
    out.print(table)

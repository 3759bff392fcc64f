"""The commands `methods`, `presets`, `settings` and `extras`, which list the choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from communis.cli.console import Json, Stacked, listing, out, rewrapped, say
from communis.cli.help import Commands
from communis.cli.listing import Named, begins
from communis.core import plugins
from communis.core.errors import CommunisError
from communis.core.extras import EXTRAS, command
from communis.run import keys
from communis.run import presets as files

methods = Commands(cls=Named, help="List the methods, or show the settings of one.")
presets = Commands(cls=Named, help="List the experiments that come with communis, or show one.")


def complete_method(typed: str) -> list[str]:
    return begins(plugins.names("methods"), typed)


def complete_preset(typed: str) -> list[str]:
    return begins(files.names(), typed)


def complete_table(typed: str) -> list[str]:
    return begins([where for where, _ in keys.inner_tables(keys.schema())], typed)


@methods.command("list")
def list_methods(json: Json = False) -> None:
    """List the methods."""
    entries = {name: entry["description"] for name, entry in keys.entries("method").items()}
    if json:
        return say({"event": "methods", "methods": entries})
    out.print(listing(("method", "what it does"), entries.items()))
    out.print("\nSettings of one: communis methods show NAME")


@methods.command("show")
def show_method(
    name: Annotated[str, typer.Argument(help="A method.", autocompletion=complete_method)],
    json: Json = False,
) -> None:
    """Show a method: its paper, the deviations from it, and its settings.

    Example: communis methods show fedavg
    """
    table = described("method", "methods", name)
    if json:
        about = {
            key: {
                "default": setting.get("default"),
                "meaning": setting.get("description", ""),
                "values": keys.values(setting),
            }
            for key, setting in keys.settings(table).items()
        }
        return say({"event": "method", "method": name, "settings": about})
    out.print(rewrapped(table["description"], out.width), soft_wrap=True)
    out.print()
    out.print(key_table(table, "method"))


def described(table: str, room: str, name: str) -> Mapping[str, Any]:
    """The settings and the description of a method or dataset. Those of a third-party plug-in come
    from its own code, which is loaded."""
    if ":" not in name and name in plugins.names(room):
        return keys.definition(table, name)
    plugins.trust_asked(name)
    kind = plugins.find(room, name)
    # Imported here because only third-party plug-ins need it, and the imports take seconds.
    import inspect

    from communis.core.fields import table_schema

    return {**table_schema(kind), "description": inspect.getdoc(inspect.getmodule(kind)) or ""}


def key_table(table: Mapping[str, Any], where: str) -> Stacked:
    """The keys of a table with their defaults, meanings and allowed values."""
    required = table.get("required", ())
    rows = []
    for key, setting in keys.settings(table).items():
        name = f"{where}.{key}" if where else key
        default = keys.default(setting) or ("required" if key in required else "")
        rows.append((name, default, _meaning(setting)))
    return listing(("setting", "default", "meaning"), rows)


def _meaning(key: Mapping[str, Any]) -> str:
    """The meaning of a key, and its allowed values where the default does not show them."""
    description = key.get("description", "")
    values = keys.values(key)
    if "enum" in key or "default" not in key or key["default"] in ([], {}):
        return f"{description} [{values}]".strip()
    return str(description)


@presets.command("list")
def list_presets(json: Json = False) -> None:
    """List the experiments that come with communis."""
    entries = {name: files.about(name) for name in files.names()}
    if json:
        return say({"event": "presets", "presets": entries})
    out.print(listing(("preset", "what it is"), entries.items()))
    out.print("\nRun one: communis run NAME. Compare methods on it: communis compare --on NAME.")
    out.print("Show one: communis presets show NAME. Change one: communis new my.toml --from NAME.")


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
            help="One table, such as fleet or fleet.dropout; default: all tables.",
            autocompletion=complete_table,
        ),
    ] = "",
    json: Json = False,
) -> None:
    """List the keys of a configuration with their meanings and defaults.

    Example: communis settings run

    Where the default does not show which values are allowed, these are listed too. The keys of
    [method] and [data] depend on their name; `methods show NAME` and `data show NAME` list them.
    """
    tables = dict(keys.inner_tables(keys.schema()))
    if table in ("method", "data"):
        plural = {"method": "methods", "data": "data"}[table]
        raise CommunisError(
            f"the keys of [{table}] depend on its name; list them with: communis {plural} show NAME"
        )
    if table in keys.top()["properties"] and table not in tables:
        raise CommunisError(
            f"{table} is a key at the top of the file; `communis settings` lists these first"
        )
    if table and table not in tables:
        known = list(tables)
        hint = plugins.nearest(table, known) or keys.elsewhere(table)
        raise CommunisError(f"no table {table!r}{hint}; there are {', '.join(known)}")
    chosen = {
        where: content
        for where, content in tables.items()
        if not table or where == table or where.startswith(f"{table}.")
    }
    if json:
        return say({"event": "settings", "tables": chosen})
    if not table:
        out.print(
            "Keys at the top of the file come first, then [TABLE]s; [[TABLE]] is repeatable.\n"
        )
        out.print(key_table(keys.top(), ""))
    for where, content in chosen.items():
        head = f"[[{where}]]" if "items" in content else f"[{where}]"
        out.print(f"\n{head}  {content.get('description', '')}\n", style="bold")
        out.print(key_table(keys.inner(content), where))
    if not table:
        out.print("\nKeys of [method], by method: communis methods show NAME")
        out.print("Keys of [data], by dataset: communis data show NAME")
        out.print(f"\nFor editors, as JSON Schema: {keys.FILE}", soft_wrap=True)


def extras(json: Json = False) -> None:
    """List the optional parts and whether they are installed."""
    if json:
        return say({"event": "extras", "extras": {n: e.installed for n, e in EXTRAS.items()}})
    table = Stacked("extra", "installed", "install with", "for", text=["for"])
    for name, extra in EXTRAS.items():
        table.add_row(name, "yes" if extra.installed else "no", command(name), extra.purpose)
    out.print(table)

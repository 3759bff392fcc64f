"""Writes the reference pages that the code itself knows: commands and configuration keys, and the
tables of settings on the pages of methods.

    python docs/tools/reference.py

`tests/unit/test_docs.py` fails when the pages are not what this script would write.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import typer

from communis.cli.main import app
from communis.core.fields import table_schema
from communis.data.recordings.source import Recorded
from communis.methods.parts.training import Recipe
from communis.run import keys
from communis.run.schema import schema

REFERENCE = Path(__file__).parents[1] / "reference"
COMMANDS = REFERENCE / "commands.md"
CONFIGURATION = REFERENCE / "configuration.md"
METHODS = Path(__file__).parents[1] / "methods"
NOTE = "<!-- Written by docs/tools/reference.py: change the code, then run it again. -->\n"
Row = tuple[str, str, str, str]  # key, values, default, meaning

# What stands between these lines of a method's page is its table of settings.
BEGIN = "<!-- Settings: written by docs/tools/reference.py from the comments beside them. -->"
END = "<!-- End of settings. -->"

# The guides that explain a table.
GUIDES = {
    "partition": "See [Availability](../guides/availability.md).",
    "fleet": "See [Availability](../guides/availability.md).",
    "clock": "See [Devices](../guides/devices.md).",
    "topology": "See [Topologies](../guides/topologies.md).",
    "attack": "See [Robust rules](../guides/robust.md).",
    "robust": "See [Robust rules](../guides/robust.md).",
    "privacy": "See [Privacy](../guides/privacy.md).",
    "run": "",
}


def commands() -> str:
    """The page of commands: every command with its arguments and options."""
    root = typer.main.get_command(app)
    found = list(_commands(root, click.Context(root, info_name="communis")))
    listed = [
        f"| [`{path}`](#{path.replace(' ', '-')}) | {_sentence(c.help)} |" for path, c in found
    ]
    parts = [
        "# Commands\n",
        NOTE,
        "`communis COMMAND --help` prints the same in a terminal.\n",
        "| command | what it does |\n|---|---|",
        *listed,
        "",
        *(_command(path, command) for path, command in found),
    ]
    return "\n".join(parts)


def _commands(group: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """All commands below a group, each with the words that call it."""
    if not isinstance(group, click.Group):
        yield context.command_path, group
        return
    if group.invoke_without_command:
        yield context.command_path, group
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        yield from _commands(command, click.Context(command, parent=context, info_name=name))


def _command(path: str, command: click.Command) -> str:
    """The section of one command."""
    shown = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    arguments = [p for p in shown if isinstance(p, click.Argument)]
    options = [p for p in shown if isinstance(p, click.Option)]
    usage = " ".join(
        [path, *(_placeholder(a) for a in arguments), *(["[OPTIONS]"] * bool(options))]
    )
    lines = [f"## {path}\n", f"```text\n{usage}\n```\n", _prose(command.help or "")]
    if arguments:
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [f"| `{_placeholder(a)}` | {_cell(_help(a))} |" for a in arguments]
        lines += [""]
    if options:
        lines += ["| option | default | meaning |", "|---|---|---|"]
        lines += [f"| {_names(o)} | {_default(o)} | {_cell(_help(o))} |" for o in options]
        lines += [""]
    return "\n".join(lines)


def _placeholder(argument: click.Argument) -> str:
    name = (argument.metavar or str(argument.name)).upper()
    name += "..." if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _prose(text: str) -> str:
    """A command's help; what it gives as an example becomes a block."""
    lines = []
    for paragraph in (" ".join(p.split()) for p in text.split("\n\n")):
        said, call, words = paragraph.partition("communis ")
        if call and (said.endswith((": ", "? ")) or not said):
            lines.append(f"{said.strip()}\n\n```bash\n{call}{words}\n```\n".lstrip())
        else:
            lines.append(f"{paragraph}\n")
    return "\n".join(lines)


def _help(parameter: click.Parameter) -> str:
    return " ".join((getattr(parameter, "help", None) or "").split())


def _names(option: click.Option) -> str:
    flags = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len, reverse=True))
    if option.secondary_opts:
        flags += " / " + ", ".join(f"`{name}`" for name in option.secondary_opts)
    if option.is_flag:
        return flags
    kind = option.type
    if isinstance(kind, click.Choice):
        return f"{flags} " + " or ".join(f"`{choice}`" for choice in kind.choices)
    return f"{flags} {kind.name.split()[0].upper()}"


def _default(option: click.Option) -> str:
    if option.required:
        return "required"
    if option.is_flag or option.default in (None, "", ()) or callable(option.default):
        return ""
    return f"`{option.default}`"


def configuration() -> str:
    """The page of configuration keys: every table with its keys, defaults and meanings."""
    whole = schema()
    top = {
        key: one
        for key, one in keys.settings(keys.top()).items()
        if "additionalProperties" not in one
    }
    parts = [
        "# Configuration\n",
        NOTE,
        "A configuration is a TOML file. Nearly every key has a default. An unknown key or a bad "
        "value is refused with the nearest valid one. `communis run FILE` runs it; "
        "`TABLE.KEY=VALUE` behind that changes a key on the command line. `communis settings` "
        "prints the same in a terminal. A JSON Schema comes with the package, as "
        "`communis/run/configuration.schema.json`; files that `communis new` writes name it, so "
        "that editors check them.\n",
        "## Top of the file\n",
        _table(_rows({"properties": top})),
    ]
    written: dict[str, str] = {}
    for where, one in keys.inner_tables(whole):
        parts += _section(where, one, written)
    parts += [
        "## [method]\n",
        "`name` is a [method](../methods/README.md); its page lists its own settings. Every method "
        "has these settings of local training. `[methods.NAME]` has the same keys for one method "
        "of a comparison, `[variants.NAME]` describes a variant "
        "(see [Experiments](../guides/experiments.md)).\n",
        _table(_rows(table_schema(Recipe))),
        "## [data]\n",
        "`name` is a [source](data/README.md). Sources that read recorded files have these keys; "
        "further keys and other defaults follow by source.\n",
        _table(_rows(table_schema(Recorded))),
    ]
    common = _rows(table_schema(Recorded))
    for source, entry in keys.entries("data").items():
        shared = common if entry["x-recorded"] else []
        own = [row for row in _rows(whole["definitions"][f"data.{source}"]) if row not in shared]
        if own:
            parts += [f'### data.name = "{source}"\n', _table(own)]
    return "\n".join(parts)


def methods() -> dict[Path, str]:
    """The pages of methods with their tables of settings as the code has them; the page README has
    the settings of local training."""
    pages = {METHODS / f"{name}.md": own_settings(name) for name in keys.entries("method")}
    pages[METHODS / "README.md"] = _rows(table_schema(Recipe))
    return {path: _with_settings(path, rows) for path, rows in pages.items()}


def own_settings(method: str) -> list[Row]:
    """The settings of a method without those of local training and, as they are, of FedAvg, which
    have their own tables."""
    known = _rows(table_schema(Recipe))
    if method != "fedavg":
        known += _rows(keys.definition("method", "fedavg"))
    return [row for row in _rows(keys.definition("method", method)) if row not in known]


def _with_settings(path: Path, rows: list[Row]) -> str:
    """The page with this table of settings; a page has the two lines if there are any."""
    page = path.read_text("utf-8")
    marked = BEGIN in page and END in page
    assert marked == bool(rows), f"{path}: settings {[row[0] for row in rows]}, marked: {marked}"
    if not marked:
        return page
    before = page.partition(BEGIN)[0]
    after = page.partition(END)[2]
    return f"{before}{BEGIN}\n\n{_table(rows)}\n{END}{after}"


def _section(where: str, one: keys.Schema, written: dict[str, str]) -> list[str]:
    """The keys of a table; of equal tables the first is written out."""
    path = f"[[{where}]]" if "items" in one else f"[{where}]"
    level = "###" if "." in where else "##"
    said = " ".join(filter(None, [_capital(one.get("description", "")), GUIDES.get(where, "")]))
    parts = [f"{level} {path}\n", f"{said}\n"]
    listed = _table(_rows(keys.inner(one)))
    if listed in written:
        return [*parts, f"The keys are those of `{written[listed]}`.\n"]
    written[listed] = path
    return [*parts, listed]


def _rows(table: keys.Schema) -> list[Row]:
    required = table.get("required", ())
    return [
        (
            key,
            _code(keys.values(one)) if _listed(one) else keys.values(one),
            f"`{keys.default(one)}`" if "default" in one else "required" * (key in required),
            one.get("description", ""),
        )
        for key, one in keys.settings(table).items()
    ]


def _listed(key: keys.Schema) -> bool:
    """Whether its values are given one by one."""
    return "enum" in key or key.get("type") == "boolean"


def _code(values: str) -> str:
    return ", ".join(f"`{value}`" for value in values.split(", "))


def _table(rows: list[Row]) -> str:
    lines = ["| key | values | default | meaning |", "|---|---|---|---|"]
    for key, values, default, meaning in rows:
        lines.append(f"| `{key}` | {values} | {default} | {_cell(meaning)} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    """Text that Markdown shows as it is within a table."""
    for sign in "|*<":
        text = text.replace(sign, f"\\{sign}")
    return text


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def main() -> None:
    COMMANDS.write_text(commands(), "utf-8")
    CONFIGURATION.write_text(configuration(), "utf-8")
    for path, text in methods().items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()

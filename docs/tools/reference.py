"""Writes the reference pages that the code itself knows: commands and configuration keys.

    python docs/tools/reference.py

`tests/unit/test_docs.py` fails when the pages are not what this script would write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import tomli_w
import typer

from communis.cli.main import app
from communis.core.plugins import find, names, settings
from communis.data.recordings.source import Recorded
from communis.methods.parts.training import Recipe
from communis.run.config import Config, presets

REFERENCE = Path(__file__).parents[1] / "reference"
COMMANDS = REFERENCE / "commands.md"
CONFIGURATION = REFERENCE / "configuration.md"
NOTE = "<!-- Written by docs/tools/reference.py: change the code, then run it again. -->\n"

# Keys that a file may have at its top and that no comment in the code explains in full.
TOP = {
    "name": "name of the experiment, and of its folder below `runs/`",
    "seed": "root of every random draw; the same seed gives the same bits",
    "compare": "methods and variants that `communis compare --on FILE` runs",
    "metric": "the score to judge by, such as `macro_f1`",
    "select": "the round whose scores rank methods, see [Experiments](../guides/experiments.md)",
    "target": "scores until which rounds, seconds, joules and bytes are counted",
}
TABLES = {
    "partition": "How windows become clients. See [Availability](../guides/availability.md).",
    "fleet": "Which client has which sensors, model and device, and when. "
    "See [Availability](../guides/availability.md).",
    "clock": "How seconds and joules are counted. See [Devices](../guides/devices.md).",
    "topology": "Which client receives whose messages. See [Topologies](../guides/topologies.md).",
    "attack": "Clients that send wrong messages. See [Robust rules](../guides/robust.md).",
    "robust": "What replaces means. See [Robust rules](../guides/robust.md).",
    "privacy": "Differential privacy. See [Privacy](../guides/privacy.md).",
    "run": "Rounds, cohorts, evaluation, processes.",
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
        lines += [f"| `{_placeholder(a)}` | {_cell(_short(_help(a)))} |" for a in arguments]
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


def _short(text: str) -> str:
    """Without the list of all presets, which has a command of its own."""
    return text.replace(": " + ", ".join(presets()), " (see `communis presets`)")


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
    parts = [
        "# Configuration\n",
        NOTE,
        "A configuration is a TOML file. Nearly every key has a default. An unknown key or a bad "
        "value is refused with the nearest valid one. `communis run FILE` runs it; "
        "`--set TABLE.KEY=VALUE` changes a key on the command line.\n",
        "## Top of the file\n",
        _table((key, *_about(Config, key), text) for key, text in TOP.items()),
    ]
    for name, text in TABLES.items():
        parts += [f"## [{name}]\n", f"{text}\n", *_sections(_kind(Config, name), name)]
    parts += [
        "## [method]\n",
        "`name` is a [method](../methods/README.md); its page lists its own settings. Every method "
        "has these settings of local training. `[methods.NAME]` has the same keys for one method "
        "of a comparison, `[variants.NAME]` describes a variant "
        "(see [Experiments](../guides/experiments.md)).\n",
        _table(_rows(Recipe)),
        "## [data]\n",
        "`name` is a [source](data/README.md). Sources that read recorded files have these keys; "
        "further keys and other defaults follow by source.\n",
        _table(_rows(Recorded)),
    ]
    common = {row[0]: row for row in _rows(Recorded)}
    for source in names("data"):
        kind = find("data", source)
        shared = common if issubclass(kind, Recorded) else {}
        own = [row for row in _rows(kind) if shared.get(row[0]) != row]
        if own:
            parts += [f'### data.name = "{source}"\n', _table(own)]
    return "\n".join(parts)


Row = tuple[str, str, str, str]  # key, values, default, meaning


def _sections(kind: type[Any], where: str) -> Iterator[str]:
    """The keys of a table, then those of the tables within it; of equal tables the first is
    written out."""
    written: dict[type[Any], str] = {}
    yield _table(row for row in _rows(kind) if not is_dataclass(_inner(_hint(kind, row[0]))))
    for f in fields(kind):
        inner = _inner(_hint(kind, f.name))
        if is_dataclass(inner):
            assert isinstance(inner, type)
            several = get_origin(_hint(kind, f.name)) is tuple
            path = f"[[{where}.{f.name}]]" if several else f"[{where}.{f.name}]"
            yield f"### {path}\n\n{_capital(settings(kind)[f.name][1])}\n"
            if inner in written:
                yield f"The keys are those of `{written[inner]}`.\n"
            else:
                yield from _sections(inner, f"{where}.{f.name}")
            written.setdefault(inner, path)


def _rows(kind: type[Any]) -> list[Row]:
    return [(key, *_about(kind, key), meaning) for key, (_, meaning) in settings(kind).items()]


def _about(kind: type[Any], key: str) -> tuple[str, str]:
    """What values a key takes, and its default, as TOML writes it."""
    (f,) = (f for f in fields(kind) if f.name == key)
    if f.default is not MISSING:
        default = _toml(f.default)
    elif f.default_factory is not MISSING and not is_dataclass(_inner(_hint(kind, key))):
        default = _toml(f.default_factory())
    else:
        default = "required" if f.default_factory is MISSING else ""
    return _values(_hint(kind, key)), default


def _values(hint: Any) -> str:
    """The values that a type allows, in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{_plain(a)}`" for a in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_values(a) for a in arguments if a is not NoneType)
    if origin is tuple:
        return "list" if arguments[-1] is Ellipsis else f"list of {len(arguments)}"
    words = {int: "whole number", float: "number", str: "text", bool: "`true`, `false`"}
    return words.get(hint, "table")


def _toml(value: Any) -> str:
    return "" if value is None else f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    text = " ".join(tomli_w.dumps({"x": _listed(value)}).partition("= ")[2].split())
    return text.replace("[ ", "[").replace(", ]", "]")


def _listed(value: Any) -> Any:
    return [_listed(v) for v in value] if isinstance(value, tuple) else value


def _hint(kind: type[Any], key: str) -> Any:
    return get_type_hints(kind)[key]


def _kind(kind: type[Any], key: str) -> type[Any]:
    found = _inner(_hint(kind, key))
    assert isinstance(found, type)
    return found


def _inner(hint: Any) -> Any:
    """The dataclass within a type, such as that of a list of tables; else the type."""
    return next((a for a in (hint, *get_args(hint)) if is_dataclass(a)), hint)


def _table(rows: Iterator[Row] | list[Row]) -> str:
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


if __name__ == "__main__":
    main()

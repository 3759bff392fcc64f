"""Lazy commands: modules that import neither torch nor pandas declare them, and functions of the
same name in modules that do implement them. Help, lists and refusals therefore need neither."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from communis.core import start_up


def done_by(module: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates the declaration of a command that the function of the same name in this module of
    communis.cli implements. The body of the declaration runs first and refuses what can be refused
    without that module. A signal during the import ends the process with a one-line message; after
    it, a signal interrupts the command."""

    def declared(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(*arguments: Any, **options: Any) -> None:
            command(*arguments, **options)
            implementation = importlib.import_module(f"communis.cli.{module}")
            start_up.ready()
            getattr(implementation, command.__name__)(*arguments, **options)

        call.done_by = module  # type: ignore[attr-defined]
        return call

    return declared

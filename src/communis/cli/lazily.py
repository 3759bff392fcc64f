"""Commands are declared in modules that import neither torch nor pandas, and done by functions of
the same name in modules that do, so that help, lists and refusals answer at once."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from communis.core import start_up


def done_by(module: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Has the declared command done by the function of its name in this module of communis.cli. The
    body of the declared one comes first: it refuses what can be refused without that module. A
    signal while it is imported ends in one line; from then on it interrupts the command."""

    def declared(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(*arguments: Any, **options: Any) -> None:
            command(*arguments, **options)
            found = importlib.import_module(f"communis.cli.{module}")
            start_up.ready()
            getattr(found, command.__name__)(*arguments, **options)

        call.done_by = module  # type: ignore[attr-defined]
        return call

    return declared

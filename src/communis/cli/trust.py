"""The option `--trust`, of every command that reads a configuration of possibly foreign origin."""

from __future__ import annotations

from typing import Annotated

import typer

from communis.core import plugins


def _allow(asked: bool) -> bool:
    if asked:
        plugins.trust()
    return asked


Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        callback=_allow,
        help="Load methods, sources and networks outside of communis that the file or folder names "
        "(package.module:Class). This runs their code: use it only for code that you trust.",
    ),
]

"""What was learned: export."""

from __future__ import annotations

import importlib
from pathlib import Path

from communis.cli.console import out
from communis.core.errors import CommunisError
from communis.core.plugins import find
from communis.results.export.card import Card
from communis.results.export.check import compared
from communis.results.export.files import Kind, write
from communis.results.finished import read
from communis.results.trained import Trained

SUFFIX = {"onnx": ".onnx", "pt2": ".pt2", "safetensors": ".safetensors"}


def export(
    run: Path, client: str, round: str, to: Kind, output: Path | None, trust: bool, quiet: bool
) -> None:
    trained = Trained(run)
    number = trained.client(client)
    predictor = trained.model(number, round)
    path = output or Path(f"{run.name}-client{number}{SUFFIX[to]}")
    if path.suffix != SUFFIX[to]:
        raise CommunisError(f"{path}: a file for --to {to} ends in {SUFFIX[to]}")
    finished = read(run)
    source = find("data", str(finished.config["data"]["name"]))
    about = getattr(importlib.import_module(source.__module__), "ABOUT", None)
    card = Card(finished, predictor, trained.number(round), f"client {number}", about, to)
    write(predictor, to, path, card.metadata)
    check = "" if to == "safetensors" else compared(trained, predictor, path, to).line
    beside = path.with_suffix(".md")
    beside.write_text(card.text(path.name, check), "utf-8")
    if not quiet:
        out.print(f"wrote {path} and its model card {beside}", soft_wrap=True)
        if check:
            out.print(f"checked: {check}", soft_wrap=True)

"""What was learned: predict and export."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import pandas as pd
from rich.table import Table

from communis.cli.console import out
from communis.core import disk
from communis.core.errors import CommunisError
from communis.core.plugins import find
from communis.results.export.card import Card
from communis.results.export.check import checked
from communis.results.export.files import Kind, write
from communis.results.finished import read
from communis.results.predict import Normalise, Predicted, predicted
from communis.results.trained import Trained

SUFFIX = {"onnx": ".onnx", "pt2": ".pt2", "safetensors": ".safetensors"}
SHOWN = 20  # rows of predictions on the screen


def predict(
    run: Path,
    files: list[Path],
    client: str,
    newcomer: bool,
    normalise: Normalise,
    model: str,
    round: str,
    output: Path | None,
    trust: bool,
    quiet: bool,
) -> None:
    if output is not None and output.suffix not in (".csv", ".parquet"):
        raise CommunisError(f"{output}: expected a name that ends in .csv or .parquet")
    _refuse_taken(output)
    trained = Trained(run)
    _refuse_both(trained, client, newcomer, "--newcomer")
    found = predicted(trained, files, client, normalise, model, round)
    if not quiet:
        _show(found)
    if output is not None:
        _write(found.table, output)
        out.print(f"wrote {output}: {len(found.table)} windows", soft_wrap=True)


def export(
    run: Path,
    client: str,
    common: bool,
    model: str,
    to: Kind,
    round: str,
    output: Path | None,
    trust: bool,
    quiet: bool,
) -> None:
    trained = Trained(run)
    _refuse_both(trained, client, common, "--common")
    if client and model:
        raise CommunisError("--model is for --common; a client of the run has its own model")
    if common:
        predictor = trained.common(model, round)
        whose = "the common model"
        name = f"{run.name}-common"
    else:
        number = trained.client(client)
        predictor = trained.model(number, round)
        whose = f"client {number}"
        name = f"{run.name}-client{number}"
    path = output or Path(f"{name}{SUFFIX[to]}")
    if path.suffix != SUFFIX[to]:
        raise CommunisError(f"{path}: a file for --to {to} ends in {SUFFIX[to]}")
    beside = path.with_name(f"{path.name}.md")
    _refuse_taken(path)
    _refuse_taken(beside)
    finished = read(run)
    source = find("data", str(finished.config["data"]["name"]))
    about = getattr(importlib.import_module(source.__module__), "ABOUT", None)
    normalised = trained.normalised_by(predictor)
    card = Card(finished, predictor, trained.number(round), whose, normalised, about, to)
    write(predictor, to, path, card.metadata)
    try:
        check = checked(trained, predictor, path, to)
    except BaseException:
        path.unlink()
        raise
    disk.replace_file(beside, card.text(path.name, check).encode())
    if not quiet:
        out.print(f"wrote {path} and its model card {beside}", soft_wrap=True)
        out.print(f"checked: {check}", soft_wrap=True)


def _refuse_taken(path: Path | None) -> None:
    """Refuses the name of a file that exists, such as one of the recordings, and folders that do
    not."""
    if path is None:
        return
    if path.exists() or path.is_symlink():
        raise CommunisError(f"{path}: there is such a file; remove it, or choose another with -o")
    if not path.parent.is_dir():
        raise CommunisError(f"{path.parent}: no such folder; make it, or choose another with -o")


def _refuse_both(trained: Trained, client: str, common: bool, option: str) -> None:
    """Refuses commands that name no model, or two."""
    if bool(client) != common:
        return
    example = trained.clients[0] if trained.clients else 0
    raise CommunisError(
        f"whose model: expected either --client, such as --client {example}, or {option}"
    )


def _show(found: Predicted) -> None:
    frame = found.table
    if "label" in frame:
        columns = ["recording", "start", "end", "sensors", "label", "probability"]
        columns += ["uncertainty"] if "uncertainty" in frame else []
    else:
        columns = list(frame.columns)
    view = Table(box=None)
    for column in columns:
        view.add_column(column, overflow="fold")
    for _, row in frame.head(SHOWN).iterrows():
        cells = [f"{x:.3f}" if isinstance(x, float) else str(x) for x in row[columns]]
        view.add_row(*cells)
    out.print(view)
    if len(frame) > SHOWN:
        out.print(f"and {len(frame) - SHOWN} more windows; -o FILE.csv writes all", soft_wrap=True)
    if "label" in frame:
        counts = Counter(frame["label"])
        parts = [f"{name} {count}" for name, count in counts.most_common()]
        out.print(f"{len(frame)} windows: {', '.join(parts)}", soft_wrap=True)
    there = {m for cell in frame["sensors"].unique() for m in cell.split("+")}
    lacking = [m for m in found.predictor.modalities if m not in there]
    if lacking:
        out.print(f"without {', '.join(lacking)}, which the recordings do not have", soft_wrap=True)
    out.print(f"normalised by {found.normalised_by}", soft_wrap=True)


def _write(frame: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".csv":
        disk.replace_file(path, frame.to_csv(index=False).encode())
    else:
        disk.replace_file(path, frame.to_parquet(index=False))

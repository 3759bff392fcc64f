"""Values that are refused before the training code is imported: by the types and checks of the
settings classes, and for the same reason as later."""

from __future__ import annotations

import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from communis import CommunisError
from communis.core.plugins import find, names
from communis.run import early, presets
from communis.run.config import Config, load_cells
from communis.run.keys import NAMED


def class_at(key: str) -> Any:
    """The class of the table at a dotted key, by the type hints of `Config`."""
    kind: Any = Config
    for name in key.split("."):
        kind = get_type_hints(kind)[name]
        if get_origin(kind) in (tuple, Union, types.UnionType):
            kind = get_args(kind)[0]
    return kind


def alike(early_type: Any, hint: Any) -> bool:
    """Whether two types allow the same values; dataclasses are compared key by key."""
    if is_dataclass(early_type):
        types_of = get_type_hints(hint)
        hints = {f.name: types_of[f.name] for f in fields(hint)}  # without class variables
        own = get_type_hints(early_type)
        needed = [f.name for f in fields(hint) if f.default is f.default_factory is MISSING]
        required = [f.name for f in fields(early_type) if f.default is MISSING]
        return (
            list(hints) == list(own)
            and (early_type is hint or needed == required)
            and all(alike(own[name], hints[name]) for name in own)
        )
    if get_origin(hint) in (Union, types.UnionType):  # TOML has no None
        choices = [a for a in get_args(hint) if a is not type(None)]
        if len(choices) == 1:
            return alike(early_type, choices[0])
    if get_origin(hint) is tuple and get_origin(early_type) is tuple:
        pairs = zip(get_args(early_type), get_args(hint), strict=True)
        return all(one is other or alike(one, other) for one, other in pairs)
    return bool(early_type == hint)


def test_the_classes_of_early_checks_are_those_of_the_configuration() -> None:
    for key, kind in early.SETTINGS.items():
        assert kind is class_at(key), key


@pytest.mark.parametrize("table", ["clock", "partition", "attack"])
def test_the_types_of_other_tables_are_those_of_their_classes(table: str) -> None:
    assert alike(early._types()[table], class_at(table))


def test_the_types_of_tokens_are_those_of_their_class() -> None:
    assert alike(get_type_hints(early._types()["fleet"])["sglt"], class_at("fleet.sglt"))


@pytest.mark.parametrize("table", list(NAMED))
def test_the_types_of_methods_and_datasets_are_those_of_their_classes(table: str) -> None:
    for name in names(NAMED[table]):
        assert alike(early._settings_of(table, name), find(NAMED[table], name)), name


@pytest.mark.parametrize("name", presets.names())
def test_presets_are_not_refused(name: str) -> None:
    early.refuse(name)


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("watch", "method.lr=abc"),
        ("watch", "method.lr=1e39"),
        ("watch", "method.name=fedag"),
        ("watch", "method=3"),
        ("watch", "methods.fedprox.mu=abc"),
        ("watch", "data.name=wacth"),
        ("watch", "data.name=3"),
        ("watch", "name=a/b"),
        ("watch", "seed=-1"),
        ("watch", "target=abc"),
        ("watch", "target=[-1]"),
        ("watch", "select=tial"),
        ("watch", "compare=3"),
        ("watch", "run.rounds=-1"),
        ("watch", "run.participation=2"),
        ("watch", "run.device=nosuch"),
        ("watch", "fleet.models=cnn"),
        ("watch", "fleet.roles=[{modalities=['acc']}]"),
        ("watch", "fleet.dropout.rate=1"),
        ("watch", "fleet.sglt.gate=nosuch"),
        ("watch", "attack.kind=nosuch"),
        ("watch", "partition.by=nosuch"),
        ("watch", "privacy.mode=local"),
        ("watch", "robust.rule=kum"),
        ("watch", "topology.edges=[[1]]"),
        ("fedduet/dsads", "run.rounds=-1"),
        ("fedduet/dsads", "fleet.dropout.rate=1"),
    ],
)
def test_a_value_is_refused_for_the_same_reason_early_and_later(source: str, change: str) -> None:
    with pytest.raises(CommunisError) as refused_early:
        early.refuse(source, [change], {"compare": ()})
    with pytest.raises(CommunisError) as refused_later:
        load_cells(source, [change], alone=True)
    assert str(refused_early.value) == str(refused_later.value)


def test_a_refusal_of_a_variant_names_its_key() -> None:
    with pytest.raises(CommunisError, match=r"variants\.clipped\.lr: expected a finite number"):
        early.refuse("fedduet/dsads", ["variants.clipped.lr=abc"])


def test_what_a_run_does_not_use_is_not_refused() -> None:
    with pytest.raises(CommunisError, match="no method 'fedag'"):
        early.refuse("watch", ["compare=['fedag']"])
    with pytest.raises(CommunisError, match="no method 'fedag'"):
        early.refuse("watch", [], {"compare": ["fedavg", "fedag"]})
    early.refuse("watch", ["method.name='package.module:Class'"], {"compare": ()})
    early.refuse("fedduet/dsads", ["method.name=clipped"], {"compare": ()})  # a variant

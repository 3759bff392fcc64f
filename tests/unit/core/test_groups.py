"""Groups from paths, and how much clients disagree on them."""

from __future__ import annotations

import pytest
import torch

from communis import Replies, State
from communis.core.contract import Card
from communis.core.groups import divergence, group_of, groups, modality_of_group
from communis.models.zoo import architecture


@pytest.mark.parametrize(
    ("path", "group", "modality"),
    [
        ("fusion.blocks.acc.weight", "fusion.blocks.acc", "acc"),
        ("fusion.blocks.acc.lora_A", "fusion.blocks.acc", "acc"),
        ("fusion.shared.bias", "fusion.shared", ""),
        ("fusion.shared.score1.weight", "fusion.shared", ""),
        ("encoders.acc.conv1.weight", "encoders.acc.conv1", "acc"),
        ("encoders.acc.blocks.0.q.lora_A", "encoders.acc.blocks.0", "acc"),
        ("encoders.acc.stack.block.3.layer.0.q.lora_A.default.weight",
         "encoders.acc.stack.block.3", "acc"),
        ("unimodal.acc.out.bias", "unimodal.acc.out", "acc"),
        ("head.out.weight", "head.out", ""),
        ("head.hidden.0.weight", "head.hidden.0", ""),
        ("private.head.out.weight", "private.head.out", ""),
    ],
)  # fmt: skip
def test_group_of_a_path(path: str, group: str, modality: str) -> None:
    assert group_of(path) == group
    assert modality_of_group(group) == modality


def test_a_modality_may_be_called_by_a_number() -> None:
    assert group_of("encoders.3.conv1.weight") == "encoders.3.conv1"
    assert modality_of_group("encoders.3.conv1") == "3"


def test_the_groups_of_the_paper() -> None:
    """PAMAP2: 4 blocks, the shared part, 2 layers in each of 4 encoders, 1 layer of the head."""
    for suite, expected in (
        (("acc", "gyro", "mag", "heart"), 14),
        (("acc", "gyro"), 8),
        (("acc",), 5),
    ):
        model = architecture("lite").build(dict.fromkeys(suite, (9, 256)), 12)
        assert len(groups(model.by_path[0])) == expected


def replies(*vectors: dict[str, list[float]]) -> Replies[State]:
    card = Card(0, (), {}, 1, {}, {})
    return Replies([(card, State({k: torch.tensor(v) for k, v in one.items()})) for one in vectors])


def test_divergence_by_hand() -> None:
    """Squared distances to the mean (2, 0) are 5 and 5; the other group has one sender."""
    found = divergence(
        replies({"head.out.w": [1.0, 2.0]}, {"head.out.w": [3.0, -2.0], "head.in.w": [9.0]}),
        lambda w: w,
    )
    assert {k: float(v) for k, v in found.items()} == {"head.out": 5.0}


def test_equal_updates_do_not_diverge_and_a_common_shift_makes_no_difference() -> None:
    same = {"head.out.w": [1.0, 2.0], "head.out.b": [3.0]}
    assert float(divergence(replies(same, same, same), lambda w: w)["head.out"]) == 0.0
    one, other = {"head.out.w": [1.0, -1.0]}, {"head.out.w": [0.5, 4.0]}
    plain = divergence(replies(one, other), lambda w: w)["head.out"]
    shifted = divergence(replies(one, other), lambda w: w + 100.0)["head.out"]
    torch.testing.assert_close(plain, shifted, rtol=1e-4, atol=0)

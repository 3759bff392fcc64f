"""A private state that is not finite: what others see of it, and what the optimiser carries on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from communis import FedAvg, Run
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.wire import encode
from tests.contract.test_states import PLAN, WHEN, WHO, breaking
from tests.fleets import mixed_fleet


def test_under_a_guard_a_broken_state_changes_nothing_that_others_see() -> None:
    """Silence would tell of the client's data: its noised message leaves all the same."""
    noisy = PrivacyConfig(mode="local", noise=1.0)
    with Run(mixed_fleet(), breaking("fedper", "local"), PLAN, privacy=noisy) as run:
        records = list(run)
    with Run(mixed_fleet(), breaking("fedper", "nowhere"), PLAN, privacy=noisy) as whole:
        expected = list(whole)
    assert [record.bytes_up for record in records] == [record.bytes_up for record in expected]
    assert [client for client, _ in records[1].refused] == [WHO]  # the simulation knows
    assert run._since.tolist()[WHO] == 3  # it trained again in the last round, from round 1
    assert encode(run.server).data != encode(whole.server).data


class Adrift(FedAvg):
    """What the optimiser of client WHO carries on is no number after round WHEN; its message is."""

    def local(self, client: Any, state: Any, down: Any) -> Any:
        state, up = super().local(client, state, down)
        if (client.card.id, client.round) == (WHO, WHEN):
            key = min(client.memory)
            client.memory[key] = torch.full_like(client.memory[key], torch.inf)
        return state, up


@pytest.mark.parametrize("workers", [1, 2])
def test_what_an_optimiser_carries_on_is_a_part_of_the_state(workers: int) -> None:
    method = Adrift(batch=8, momentum=0.9, carry=True)
    with Run(mixed_fleet(), method, replace(PLAN, workers=workers)) as run:
        records = list(run)
    assert [[client for client, _ in record.refused] for record in records] == [[], [WHO], []]
    assert records[1].refused[0][1].startswith("private state: memory of the optimiser/")

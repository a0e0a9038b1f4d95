"""Rebuild settings: the object's fields over the defaults."""

from typing import Any

import pytest

from agentmemory_operator.spec.effective.policies import ChangePolicy, RebuildSettings, rebuild_settings
from agentmemory_operator.spec.kinds.agent_memory import AgentMemorySpec

EVERYTHING = {
    "maxEmbeddingCallsPerHour": 600,
    "embeddingPricePerMillionTokens": 0.02,
    "maxRecallDropPercent": 1.5,
}
ALL_SET = RebuildSettings(
    change_policy=ChangePolicy.NEVER,
    keep_previous_hours=0,
    max_calls_per_hour=600,
    price=0.02,
    max_recall_drop_percent=1.5,
)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, RebuildSettings()),
        ({"rebuild": {}}, RebuildSettings()),
        ({"changePolicy": "Apply"}, RebuildSettings(change_policy=ChangePolicy.APPLY)),
        ({"changePolicy": "Never", "keepPreviousHours": 0, "rebuild": EVERYTHING}, ALL_SET),
        ({"rebuild": {"maxRecallDropPercent": 0}}, RebuildSettings(max_recall_drop_percent=0)),
    ],
)
def test_field_overrides_its_default(spec: dict[str, Any], expected: RebuildSettings) -> None:
    assert rebuild_settings(AgentMemorySpec.model_validate({"connectionRef": {"name": "main"}} | spec)) == expected


def test_defaults_require_approval_and_keep_a_day() -> None:
    """The recall may drop by 5 %."""
    settings = RebuildSettings()

    assert settings.change_policy == "RequireApproval"
    assert (settings.keep_previous_hours, settings.max_recall_drop_percent) == (24, 5)

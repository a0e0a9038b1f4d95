"""What a collection says of a move that is ahead, as it is written and read."""

import pytest

from agentmemory_operator.collections.rules.announcement import (
    MOVING_KEY,
    Phase,
    build_announcement,
    copies_writes,
    embedding_after,
    is_announced,
    must_clients_wait,
    phase_of,
)


@pytest.mark.parametrize("phase", Phase)
def test_what_is_announced_is_read(phase: Phase) -> None:
    metadata = build_announcement("a__1", "a__2", "t", phase, carries=True, embedding={"provider": "none"})

    assert (phase_of(metadata), copies_writes(metadata), must_clients_wait(metadata)) == (phase, True, True)
    assert embedding_after(metadata) == {"provider": "none"}
    assert (is_announced(metadata, "t"), is_announced(metadata, "u")) == (True, False)


def test_a_restore_carries_nothing_over_and_may_keep_the_embedding() -> None:
    metadata = build_announcement("a__1", "a__2", "t", Phase.FINAL, carries=False, embedding=None)

    assert not copies_writes(metadata)
    assert embedding_after(metadata) is None


@pytest.mark.parametrize("told", [None, "x", [], {}, {"phase": "Soon"}])
def test_what_is_no_announcement_is_none(told: object) -> None:
    metadata = {MOVING_KEY: told}

    assert (phase_of(metadata), copies_writes(metadata), embedding_after(metadata)) == (None, True, None)
    assert not is_announced(metadata, "t")
    assert not must_clients_wait(None)

"""Announcements of alias moves in a collection's metadata."""

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
def test_announcement_round_trips(phase: Phase) -> None:
    metadata = build_announcement("a__1", "a__2", "t", phase, copies_writes=True, embedding={"provider": "none"})

    assert (phase_of(metadata), copies_writes(metadata), must_clients_wait(metadata)) == (phase, True, True)
    assert embedding_after(metadata) == {"provider": "none"}
    assert (is_announced(metadata, "t"), is_announced(metadata, "u")) == (True, False)


def test_restore_copies_no_writes() -> None:
    metadata = build_announcement("a__1", "a__2", "t", Phase.FINAL, copies_writes=False, embedding=None)

    assert not copies_writes(metadata)
    assert embedding_after(metadata) is None


@pytest.mark.parametrize("value", [None, "x", [], {}, {"phase": "Soon"}])
def test_invalid_announcement_is_none(value: object) -> None:
    metadata = {MOVING_KEY: value}

    assert (phase_of(metadata), copies_writes(metadata), embedding_after(metadata)) == (None, True, None)
    assert not is_announced(metadata, "t")
    assert not must_clients_wait(None)

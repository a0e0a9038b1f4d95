"""Marks of recent entries as text, from readers and from forgers."""

import base64

from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.collections.rules.epochs import Epoch
from agentmemory_operator.memories.rules.change_entries import Position, build_change, decode_position
from agentmemory_operator.memories.rules.ids import decode_cursor
from agentmemory_operator.memories.rules.log_read import LogRead
from agentmemory_operator.memories.rules.recent_entries import MAX_RECENT, Mark, RecentEntries, decode_recent

NOW_MS = 1_795_000_000_000
times = st.integers(NOW_MS, NOW_MS + 310_000)
marks = st.frozensets(st.builds(Mark, times, st.binary(min_size=6, max_size=6)), min_size=1, max_size=MAX_RECENT)
positions = st.builds(
    Position,
    st.builds(Epoch, number=st.integers(0, NOW_MS), contents=st.integers(0, NOW_MS)),
    times,
    st.one_of(st.none(), st.uuids().map(str), st.integers(0, 1 << 40)),
    st.builds(RecentEntries, st.binary(min_size=3, max_size=3), marks),
)


@given(positions)
def test_cursor_contains_the_position(position: Position) -> None:
    assert decode_position(position.encode("bot"), "bot") == position


@given(positions)
def test_older_version_reads_the_position_without_marks(position: Position) -> None:
    """It decodes the whole cursor as Base64."""
    values = [position.epoch.number, position.epoch.contents, position.at, position.id]
    assert (decode_cursor(position.encode("bot")) or [])[:-1] == values


@given(st.one_of(st.text(), st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode())))
def test_any_text_is_decoded_or_refused(text: str) -> None:
    recent = decode_recent(text)
    assert recent is None or len(recent.marks) <= MAX_RECENT


@given(positions, st.text(alphabet="AZaz09-_. é", min_size=1, max_size=11))
def test_malformed_marks_are_refused(position: Position, extra: str) -> None:
    assert decode_position(position.encode("bot") + extra, "bot") is None


def test_other_kind_is_another_entry() -> None:
    """A memory may be stored in the place of a deleted one, at the same time by another clock."""
    read = LogRead(Position(Epoch()), NOW_MS, b"new")
    deleted = build_change("id", {"loggedAt": NOW_MS + 1, "deletedAt": NOW_MS + 1}, Epoch())
    read.take(deleted)
    read = LogRead(read.position, NOW_MS, b"new")
    assert read.take(deleted) is None
    read = LogRead(read.position, NOW_MS, b"new")
    assert read.take(build_change("id", {"loggedAt": NOW_MS + 1}, Epoch())) is not None


def test_marks_far_apart_are_forged() -> None:
    """They are left out of the next cursor."""
    position = Position(Epoch(), 0, None, RecentEntries(b"abc", frozenset({Mark(1 << 47, b"forged")})))
    read = LogRead(position, NOW_MS, b"new")
    change = read.take(build_change("id", {"loggedAt": NOW_MS + 1}, Epoch()))
    assert change is not None
    position = decode_position(change.position.encode("bot"), "bot") or position
    assert [mark.at for mark in position.recent.marks] == [NOW_MS + 1]


def test_salts_give_different_marks() -> None:
    """Nobody who chooses ids can foresee which marks are equal."""
    entry = build_change("id", {"loggedAt": NOW_MS + 1}, Epoch())
    reads = [LogRead(Position(Epoch()), NOW_MS, salt) for salt in (b"abc", b"abd")]
    for read in reads:
        read.take(entry)
    first, second = (read.position.recent.marks for read in reads)
    assert first.isdisjoint(second)

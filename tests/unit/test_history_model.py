"""The model of the history checker: small histories that are well pass, and of each kind of violation one is found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.cluster.history.model import History, Kind, Operation, Outcome, Span, Timeline, violations
from tests.support.cluster.history.rows import Kill, Row, chain_violations, count_violations

U = "u"


def done(kind: Kind, begun: float, ended: float | None = None, **more: Any) -> Operation:
    """Return an operation that was acknowledged, unless `more` says otherwise; it takes half a second."""
    given = {"user": U, "outcome": Outcome.OK, "process": "api-0"} | more
    return Operation(kind=kind, begun=begun, ended=begun + 0.5 if ended is None else ended, **given)


def store(content: str, begun: float, *, follows: str = "", **more: Any) -> Operation:
    return done(Kind.STORE, begun, content=content, targets=(follows,) if follows else (), **more)


def refused(content: str, begun: float, **more: Any) -> Operation:
    return store(content, begun, outcome=Outcome.REFUSED, status="409", **more)


def unknown(content: str, begun: float, **more: Any) -> Operation:
    return store(content, begun, outcome=Outcome.UNKNOWN, **more)


def delete(content: str, begun: float, **more: Any) -> Operation:
    return done(Kind.DELETE, begun, targets=tuple(content.split()), **more)


def forget(begun: float, **more: Any) -> Operation:
    return done(Kind.FORGET, begun, **more)


def search(begun: float, *found: str, **more: Any) -> Operation:
    return done(Kind.SEARCH, begun, found=frozenset(found), **more)


def listed(begun: float, *found: str, **more: Any) -> Operation:
    return done(Kind.LIST, begun, found=frozenset(found), **more)


def at_rest() -> Timeline:
    return Timeline(0)


def restored(*, cut: float = 10, moved: float = 20, calm: float = 21) -> Timeline:
    """Return one restore: a snapshot cut within a second, an alias moved within a second."""
    timeline = Timeline(0)
    timeline.snapshot("s", Span(cut, cut + 1))
    timeline.restore("s", Span(moved, moved + 1), calm=max(calm, moved + 1))
    return timeline


def taken_back(*, moved: float = 20, back: float = 30) -> Timeline:
    timeline = restored(moved=moved)
    timeline.roll_back(Span(back, back + 1), calm=back + 2)
    return timeline


WELL: dict[str, tuple[Timeline, list[Operation]]] = {
    "what was stored is found": (at_rest(), [store("a", 1), search(2, "a"), listed(3, "a")]),
    "what is being stored may be found or not": (at_rest(), [store("a", 1, ended=5), search(2), search(3, "a")]),
    "what is not known to be stored may be found much later": (
        at_rest(),
        [unknown("a", 1), search(2), search(90, "a")],
    ),
    "a successor hides its predecessor": (
        at_rest(),
        [store("a", 1), store("b", 2, follows="a"), search(3, "b"), listed(4, "a", "b")],
    ),
    "who was refused is not there": (at_rest(), [store("a", 1), refused("b", 2, follows="a"), search(3, "a")]),
    "whose successor was deleted answers again": (
        at_rest(),
        [store("a", 1), store("b", 2, follows="a"), delete("b", 3), search(4, "a"), listed(5, "a")],
    ),
    "a successor of which nobody knows may hide it": (
        at_rest(),
        [store("a", 1), unknown("b", 2, follows="a"), search(3), search(4, "a"), search(5, "b")],
    ),
    "another store of the key, of which nobody knows, may hide it": (
        at_rest(),
        [store("a", 1, chain="k"), unknown("b", 2, chain="k"), search(3), search(4, "b")],
    ),
    "the successor of a deleted one follows the one before": (
        at_rest(),
        [store("a", 1), store("b", 2, follows="a"), store("c", 3, follows="b"), delete("b", 4), search(5, "c")],
    ),
    "a key's first memory has its predecessor's id, so it may be meant": (
        at_rest(),
        [store("a", 1), forget(2), store("b", 3), delete("a b", 4), search(5), search(6, "b")],
    ),
    "a store of the key that is under way hides it": (
        at_rest(),
        [store("a", 1, chain="k"), store("b", 2, ended=5, chain="k", follows="a"), search(3), search(6, "b")],
    ),
    "who was forgotten is gone, and what came then stays": (
        at_rest(),
        [store("a", 1), forget(2), search(3), store("b", 4), search(5, "b")],
    ),
    "a forget that was broken off may have erased": (
        at_rest(),
        [store("a", 1), forget(2, outcome=Outcome.UNKNOWN), search(3), search(4, "a")],
    ),
    "a restore undoes what came after its cut": (
        restored(),
        [store("a", 1), store("b", 15), search(16, "a", "b"), search(22, "a"), store("c", 23), search(24, "a", "c")],
    ),
    "what overlaps the cut may be in it or not": (
        restored(),
        [store("a", 9.8, ended=10.5), search(12, "a"), search(22), search(23, "a")],
    ),
    "what overlaps the move is before or after it": (
        restored(),
        [store("a", 19.8, ended=21.5), search(22), search(23, "a")],
    ),
    "a read that overlaps the move sees either": (restored(), [store("a", 15), search(20.5, "a"), search(20.6)]),
    "a deletion after the cut is undone": (
        restored(),
        [store("a", 1), delete("a", 15), search(16), search(22, "a")],
    ),
    "a successor after the cut is undone": (
        restored(),
        [store("a", 1), store("b", 15, follows="a"), search(16, "b"), search(22, "a")],
    ),
    "what was forgotten after the cut stays forgotten": (restored(), [store("a", 1), forget(15), search(22)]),
    "until the restore is done it may show what was forgotten": (
        restored(calm=25),
        [store("a", 1), forget(15), search(23, "a"), search(26)],
    ),
    "a rollback brings what was before the restore": (
        taken_back(),
        [store("a", 1), store("b", 15), store("c", 25), search(26, "a", "c"), search(33, "a", "b")],
    ),
    "what was forgotten between stays forgotten": (
        taken_back(),
        [store("a", 1), store("b", 15), forget(25), search(33)],
    ),
}


@pytest.mark.parametrize("name", WELL)
def test_a_history_that_can_have_been_passes(name: str) -> None:
    timeline, operations = WELL[name]

    assert violations(History(operations, timeline)) == []


MISSES, CANNOT = "misses what has to be there", "finds what cannot be there"
WRONG: dict[str, tuple[Timeline, list[Operation], str]] = {
    "an acknowledged memory is lost": (at_rest(), [store("a", 1), search(2)], MISSES),
    "a refused one is found": (
        at_rest(),
        [store("a", 1), refused("b", 2, follows="a"), search(75, "a", "b")],
        "finds what was refused with 409",
    ),
    "a refused one is found in a restored copy": (
        restored(),
        [store("a", 1), refused("b", 15, follows="a"), listed(22, "a", "b")],
        "finds what was refused with 409",
    ),
    "what hides behind a refused successor is lost": (
        at_rest(),
        [store("a", 1), refused("b", 2, follows="a"), search(3)],
        MISSES,
    ),
    "a replaced one answers": (at_rest(), [store("a", 1), store("b", 2, follows="a"), search(3, "a", "b")], CANNOT),
    "an earlier version is lost": (at_rest(), [store("a", 1), store("b", 2, follows="a"), listed(3, "b")], MISSES),
    "a deleted one is back": (at_rest(), [store("a", 1), delete("a", 2), search(3, "a")], CANNOT),
    "one whose successor was deleted does not answer": (
        at_rest(),
        [store("a", 1), store("b", 2, follows="a"), delete("b", 3), search(4)],
        MISSES,
    ),
    "who was forgotten is back": (at_rest(), [store("a", 1), forget(2), search(3, "a")], CANNOT),
    "what came after the forgetting is lost": (at_rest(), [forget(1), store("a", 2), search(3)], MISSES),
    "what came after the cut is still there": (restored(), [store("b", 15), search(22, "b")], CANNOT),
    "what was before the cut is lost": (restored(), [store("a", 1), search(22)], MISSES),
    "a deletion after the cut is not undone": (restored(), [store("a", 1), delete("a", 15), search(22)], MISSES),
    "what came after the move is lost": (restored(), [store("c", 22), search(23)], MISSES),
    "who was forgotten after the cut is back": (restored(), [store("a", 1), forget(15), search(22, "a")], CANNOT),
    "who was forgotten during the move is back": (restored(), [store("a", 1), forget(20.5), search(23, "a")], CANNOT),
    "a rollback loses what was before the restore": (taken_back(), [store("b", 15), search(33)], MISSES),
    "a rollback keeps what came after the restore": (taken_back(), [store("c", 25), search(33, "c")], CANNOT),
    "who was forgotten before a rollback is back": (
        taken_back(),
        [store("b", 15), forget(25), search(33, "b")],
        CANNOT,
    ),
    "somebody else's is found": (at_rest(), [store("a", 1, user="v"), search(2, "a")], "nobody stored it"),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_kind_of_untrue_answer_is_found(name: str) -> None:
    timeline, operations, told = WRONG[name]

    assert [told in violation.what for violation in violations(History(operations, timeline))] == [True]


def row(content: str, follows: str | None = None, followed_by: str | None = None, accesses: int = 0) -> Row:
    before = (follows,) if follows else ()
    return Row(content=content, user=U, follows=before, followed_by=followed_by, accesses=accesses)


def merged_row(content: str, *follows: str) -> Row:
    return replace(row(content), follows=follows)


def rows(*found: Row) -> dict[str, Row]:
    return {each.content: each for each in found}


CHAINS = {
    "whole": (rows(row("a", None, "b"), row("b", "a", "c"), row("c", "b")), []),
    "merged": (rows(row("a", None, "c"), row("b", None, "c"), merged_row("c", "a", "b")), []),
    "merged of one that leads elsewhere": (
        rows(row("a", None, "c"), row("b", None, "d"), merged_row("c", "a", "b"), row("d", "b")),
        ["two heads", "still a head"],
    ),
    "two heads": (rows(row("a", None, "b"), row("b", "a"), row("c", "a")), ["two heads", "still a head"]),
    "a successor that is not there": (rows(row("a", None, "b")), ["is not there"]),
    "a successor that follows nothing": (rows(row("a", None, "b"), row("b")), ["does not follow"]),
    "a predecessor that is not replaced": (rows(row("a"), row("b", "a")), ["still a head"]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_that_is_not_whole_is_found(name: str) -> None:
    found, told = CHAINS[name]

    assert [any(part in each.what for part in told) for each in chain_violations(found, 9)] == [True] * len(told)


SEARCHES = [store("a", 1), search(2, "a"), search(3, "a"), search(4, outcome=Outcome.UNKNOWN)]
FRESH_KILL, OLD_KILL = Kill("api-0", 3.6), Kill("api-0", 300.0)


@pytest.mark.parametrize(
    ("accesses", "kills", "is_well"),
    [
        (2, [], True),
        (3, [], True),
        (1, [], False),
        (4, [], False),
        (0, [FRESH_KILL], True),
        (1, [Kill("api-1", 3.6)], False),
        (1, [OLD_KILL], False),
    ],
)
def test_accesses_are_bounded_from_both_sides(accesses: int, kills: Sequence[Kill], is_well: bool) -> None:
    found = count_violations(History(SEARCHES, at_rest()), rows(row("a", accesses=accesses)), kills, 9, {})

    assert (found == []) is is_well


def test_accesses_before_a_restore_may_lie_in_another_collection() -> None:
    operations = [store("a", 1), search(5, "a"), search(15, "a"), search(25, "a")]
    history = History(operations, restored())
    told = [bool(count_violations(history, rows(row("a", accesses=n)), [], 30, {})) for n in range(5)]

    assert told == [True, False, False, False, True]

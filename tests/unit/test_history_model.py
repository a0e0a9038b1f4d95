"""Model of the history checker: accepts valid histories and finds each kind of violation."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.cluster.traffic.audit import Row, chain_violations, count_violations
from tests.support.cluster.traffic.journal import Kill
from tests.support.cluster.traffic.model import History, Kind, Operation, Outcome, Span, Timeline, violations

U = "u"


def done(kind: Kind, begun: float, ended: float | None = None, **more: Any) -> Operation:
    """Return an operation of half a second, acknowledged unless `more` overrides it."""
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


def edit(content: str, begun: float, importance: float, **more: Any) -> Operation:
    return done(Kind.EDIT, begun, targets=(content,), importance=importance, **more)


def forget(begun: float, **more: Any) -> Operation:
    return done(Kind.FORGET, begun, **more)


def search(begun: float, *found: str, **more: Any) -> Operation:
    return done(Kind.SEARCH, begun, found=frozenset(found), **more)


def listed(begun: float, *found: str, **more: Any) -> Operation:
    return done(Kind.LIST, begun, found=frozenset(found), **more)


def at_rest() -> Timeline:
    return Timeline(0)


def restored(*, cut: float = 10, moved: float = 20, calm: float = 21) -> Timeline:
    """Return a timeline with one restore: the snapshot and the alias move take a second each."""
    timeline = Timeline(0)
    timeline.snapshot("s", Span(cut, cut + 1))
    timeline.restore("s", Span(moved, moved + 1), calm=max(calm, moved + 1))
    return timeline


def rolled_back(*, moved: float = 20, back: float = 30) -> Timeline:
    timeline = restored(moved=moved)
    timeline.roll_back(Span(back, back + 1), calm=back + 2)
    return timeline


VALID: dict[str, tuple[Timeline, list[Operation]]] = {
    "stored memory is found": (at_rest(), [store("a", 1), search(2, "a"), listed(3, "a")]),
    "running store may be visible": (at_rest(), [store("a", 1, ended=5), search(2), search(3, "a")]),
    "store with unknown outcome may appear later": (
        at_rest(),
        [unknown("a", 1), search(2), search(90, "a")],
    ),
    "a successor hides its predecessor": (
        at_rest(),
        [store("a", 1), store("b", 2, follows="a"), search(3, "b"), listed(4, "a", "b")],
    ),
    "refused memory is absent": (at_rest(), [store("a", 1), refused("b", 2, follows="a"), search(3, "a")]),
    "predecessor of a deleted successor is visible again": (
        at_rest(),
        [store("a", 1), store("b", 2, follows="a"), delete("b", 3), search(4, "a"), listed(5, "a")],
    ),
    "successor with unknown outcome may hide it": (
        at_rest(),
        [store("a", 1), unknown("b", 2, follows="a"), search(3), search(4, "a"), search(5, "b")],
    ),
    "store of the key with unknown outcome may hide it": (
        at_rest(),
        [store("a", 1, chain="k"), unknown("b", 2, chain="k"), search(3), search(4, "b")],
    ),
    "successor of a deleted memory follows the one before": (
        at_rest(),
        [store("a", 1), store("b", 2, follows="a"), store("c", 3, follows="b"), delete("b", 4), search(5, "c")],
    ),
    "first memory of a key reuses its predecessor's id": (
        at_rest(),
        [store("a", 1), forget(2), store("b", 3), delete("a b", 4), search(5), search(6, "b")],
    ),
    "running store of the key may hide it": (
        at_rest(),
        [store("a", 1, chain="k"), store("b", 2, ended=5, chain="k", follows="a"), search(3), search(6, "b")],
    ),
    "forget removes earlier memories only": (
        at_rest(),
        [store("a", 1), forget(2), search(3), store("b", 4), search(5, "b")],
    ),
    "interrupted forget may have erased": (
        at_rest(),
        [store("a", 1), forget(2, outcome=Outcome.UNKNOWN), search(3), search(4, "a")],
    ),
    "restore undoes changes after the snapshot": (
        restored(),
        [store("a", 1), store("b", 15), search(16, "a", "b"), search(22, "a"), store("c", 23), search(24, "a", "c")],
    ),
    "store during the snapshot may be in it": (
        restored(),
        [store("a", 9.8, ended=10.5), search(12, "a"), search(22), search(23, "a")],
    ),
    "store during the move may survive": (
        restored(),
        [store("a", 19.8, ended=21.5), search(22), search(23, "a")],
    ),
    "read of a tag returns its memories alone": (
        at_rest(),
        [store("a", 1, tag="t"), store("b", 2, tag="other"), search(3, "a", tag="t"), search(4, "a", "b")],
    ),
    "read of one memory returns it alone": (
        at_rest(),
        [store("a", 1), store("b", 2), edit("a", 3, 0.9), listed(4, "a", content="a", importance=0.9)],
    ),
    "edit with unknown outcome may take effect later": (
        at_rest(),
        [
            store("a", 1),
            edit("a", 2, 0.9, outcome=Outcome.UNKNOWN),
            listed(4, "a", content="a", importance=0.5),
            listed(90, "a", content="a", importance=0.9),
        ],
    ),
    "read during the move returns either state": (restored(), [store("a", 15), search(20.5, "a"), search(20.6)]),
    "restore undoes a later deletion": (
        restored(),
        [store("a", 1), delete("a", 15), search(16), search(22, "a")],
    ),
    "restore undoes a later successor": (
        restored(),
        [store("a", 1), store("b", 15, follows="a"), search(16, "b"), search(22, "a")],
    ),
    "restore keeps a later forget": (restored(), [store("a", 1), forget(15), search(22)]),
    "running restore may show forgotten memories": (
        restored(calm=25),
        [store("a", 1), forget(15), search(23, "a"), search(26)],
    ),
    "rollback returns the state before the restore": (
        rolled_back(),
        [store("a", 1), store("b", 15), store("c", 25), search(26, "a", "c"), search(33, "a", "b")],
    ),
    "rollback keeps a forget after the restore": (
        rolled_back(),
        [store("a", 1), store("b", 15), forget(25), search(33)],
    ),
}


@pytest.mark.parametrize("name", VALID)
def test_valid_history_passes(name: str) -> None:
    timeline, operations = VALID[name]

    assert violations(History(operations, timeline)) == []


MISSES, CANNOT = "misses what has to be there", "finds what cannot be there"
INVALID: dict[str, tuple[Timeline, list[Operation], str]] = {
    "acknowledged memory is lost": (at_rest(), [store("a", 1), search(2)], MISSES),
    "refused memory is found": (
        at_rest(),
        [store("a", 1), refused("b", 2, follows="a"), search(75, "a", "b")],
        "finds what was refused with 409",
    ),
    "refused memory is found after a restore": (
        restored(),
        [store("a", 1), refused("b", 15, follows="a"), listed(22, "a", "b")],
        "finds what was refused with 409",
    ),
    "predecessor of a refused successor is lost": (
        at_rest(),
        [store("a", 1), refused("b", 2, follows="a"), search(3)],
        MISSES,
    ),
    "replaced memory is found": (at_rest(), [store("a", 1), store("b", 2, follows="a"), search(3, "a", "b")], CANNOT),
    "an earlier version is lost": (at_rest(), [store("a", 1), store("b", 2, follows="a"), listed(3, "b")], MISSES),
    "deleted memory is found": (at_rest(), [store("a", 1), delete("a", 2), search(3, "a")], CANNOT),
    "predecessor of a deleted successor is lost": (
        at_rest(),
        [store("a", 1), store("b", 2, follows="a"), delete("b", 3), search(4)],
        MISSES,
    ),
    "forgotten memory is found": (at_rest(), [store("a", 1), forget(2), search(3, "a")], CANNOT),
    "memory stored after a forget is lost": (at_rest(), [forget(1), store("a", 2), search(3)], MISSES),
    "store after the snapshot survives a restore": (restored(), [store("b", 15), search(22, "b")], CANNOT),
    "store before the snapshot is lost": (restored(), [store("a", 1), search(22)], MISSES),
    "deletion after the snapshot survives a restore": (
        restored(),
        [store("a", 1), delete("a", 15), search(22)],
        MISSES,
    ),
    "store after the move is lost": (restored(), [store("c", 22), search(23)], MISSES),
    "memory forgotten after the snapshot is found": (restored(), [store("a", 1), forget(15), search(22, "a")], CANNOT),
    "memory forgotten during the move is found": (restored(), [store("a", 1), forget(20.5), search(23, "a")], CANNOT),
    "rollback loses a store before the restore": (rolled_back(), [store("b", 15), search(33)], MISSES),
    "rollback keeps a store after the restore": (rolled_back(), [store("c", 25), search(33, "c")], CANNOT),
    "memory forgotten before a rollback is found": (
        rolled_back(),
        [store("b", 15), forget(25), search(33, "b")],
        CANNOT,
    ),
    "memory with another tag is found": (
        at_rest(),
        [store("a", 1, tag="t"), search(2, "a", tag="other")],
        "nobody stored it",
    ),
    "memory with the tag is lost": (at_rest(), [store("a", 1, tag="t"), search(2, tag="t")], MISSES),
    "memory read by id is lost": (at_rest(), [store("a", 1), listed(2, content="a")], MISSES),
    "another memory is read by id": (
        at_rest(),
        [store("a", 1), store("b", 1), listed(2, "a", "b", content="a")],
        "nobody stored it",
    ),
    "edit is lost": (
        at_rest(),
        [store("a", 1), edit("a", 2, 0.9), listed(3, "a", content="a", importance=0.5)],
        "its importance is 0.5",
    ),
    "refused edit took effect": (
        at_rest(),
        [store("a", 1), edit("a", 2, 0.9, outcome=Outcome.REFUSED), listed(3, "a", content="a", importance=0.9)],
        "its importance is 0.9",
    ),
    "memory of another user is found": (at_rest(), [store("a", 1, user="v"), search(2, "a")], "nobody stored it"),
}


@pytest.mark.parametrize("name", INVALID)
def test_each_violation_is_found(name: str) -> None:
    timeline, operations, expected = INVALID[name]

    assert [expected in violation.what for violation in violations(History(operations, timeline))] == [True]


def row(content: str, *follows: str, followed_by: str | None = None, accesses: int = 0) -> Row:
    links = {"supersedesIds": follows} if len(follows) > 1 else {"supersedesId": follows[0]} if follows else {}
    seen = {"supersededById": followed_by} if followed_by else {}
    return {"id": content, "userId": U, "content": content, "accessCount": accesses} | links | seen


def rows(*found: Row) -> dict[str, Row]:
    return {each["id"]: each for each in found}


CHAINS = {
    "whole": (rows(row("a", followed_by="b"), row("b", "a", followed_by="c"), row("c", "b")), []),
    "merged": (rows(row("a", followed_by="c"), row("b", followed_by="c"), row("c", "a", "b")), []),
    "merged of one that leads elsewhere": (
        rows(row("a", followed_by="c"), row("b", followed_by="d"), row("c", "a", "b"), row("d", "b")),
        ["two heads", "still a head"],
    ),
    "two heads": (rows(row("a", followed_by="b"), row("b", "a"), row("c", "a")), ["two heads", "still a head"]),
    "a successor that is not there": (rows(row("a", followed_by="b")), ["is not there"]),
    "a successor that follows nothing": (rows(row("a", followed_by="b"), row("b")), ["does not follow"]),
    "a predecessor that is not replaced": (rows(row("a"), row("b", "a")), ["still a head"]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_broken_chain_is_found(name: str) -> None:
    found, words = CHAINS[name]

    assert [any(word in each.what for word in words) for each in chain_violations(found, 9)] == [True] * len(words)


@pytest.mark.parametrize(("is_whole", "count"), [(True, 1), (False, 0)])
def test_missing_predecessor_breaks_a_whole_chain(is_whole: bool, count: int) -> None:
    assert len(chain_violations(rows(row("b", "a")), 9, is_whole=is_whole)) == count


SEARCHES = [store("a", 1), search(2, "a"), search(3, "a"), search(4, outcome=Outcome.UNKNOWN)]
FRESH_KILL, OLD_KILL = Kill("api-0", 3.6), Kill("api-0", 300.0)


@pytest.mark.parametrize(
    ("accesses", "kills", "is_valid"),
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
def test_accesses_have_lower_and_upper_bounds(accesses: int, kills: Sequence[Kill], is_valid: bool) -> None:
    found = count_violations(History(SEARCHES, at_rest()), rows(row("a", accesses=accesses)), kills, 9, {})

    assert (found == []) is is_valid


def test_restore_may_drop_earlier_accesses() -> None:
    operations = [store("a", 1), search(5, "a"), search(15, "a"), search(25, "a")]
    history = History(operations, restored())
    results = [bool(count_violations(history, rows(row("a", accesses=n)), [], 30, {})) for n in range(5)]

    assert results == [True, False, False, False, True]

"""Checks of the rows at the end of a history: complete chains, and access counts that match the searches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.support.cluster.history.model import History, Kind, Operation, Outcome, Violation

FLUSHED_WITHIN_S = 120.0
"""Seconds after which a recorded access is certainly written; the contract says within a minute."""


@dataclass(frozen=True, slots=True)
class Row:
    """A memory that exists at the end."""

    content: str
    user: str
    follows: tuple[str, ...]
    followed_by: str | None
    accesses: int


def chain_violations(rows: Mapping[str, Row], at: float) -> list[Violation]:
    """Return the rows whose links do not form complete chains.

    Args:
        rows: Rows by content; `follows` and `followed_by` contain contents.
    """
    return list(_of_chains(rows, at))


def _of_chains(rows: Mapping[str, Row], at: float) -> Iterator[Violation]:
    after: dict[str, str] = {}
    for row in rows.values():
        if row.followed_by is not None:
            successor = rows.get(row.followed_by)
            if successor is None:
                yield Violation("it is replaced by what is not there", row.user, row.content, at)
            elif row.content not in successor.follows:
                yield Violation("it is replaced by what does not follow it", row.user, row.content, at)
        for follows in row.follows:
            other = after.setdefault(follows, row.content)
            if other != row.content:
                yield Violation(f"a chain has two heads: {other!r} follows the same", row.user, row.content, at)
            before = rows.get(follows)
            if before is not None and before.followed_by != row.content:
                yield Violation("what it follows is still a head", row.user, row.content, at)


@dataclass(frozen=True, slots=True)
class Kill:
    """A killed process and its time."""

    process: str
    at: float


def count_violations(
    history: History, rows: Mapping[str, Row], kills: Sequence[Kill], at: float, same: Mapping[str, frozenset[str]]
) -> list[Violation]:
    """Return memories with more accesses than searches, or with fewer than were certainly written.

    Every remaining process has stopped regularly, so it has written its recorded accesses. A killed process may have
    lost some. Accesses written before the last move may be in another collection.

    Args:
        same: For each content, all contents that had the same id. Accesses are counted by id.
    """
    counting = _Counting(history, kills)
    found = []
    for row in rows.values():
        if (store := history.stores.get(row.content)) is not None:
            least, most = counting.bounds(store, same.get(row.content, frozenset({row.content})))
            if not least <= row.accesses <= most:
                told = f"it has {row.accesses} accesses, not {least} to {most}"
                found.append(Violation(told, row.user, row.content, at))
    return found


@dataclass(slots=True)
class _Counting:
    history: History
    kills: Sequence[Kill]

    def bounds(self, store: Operation, same: frozenset[str]) -> tuple[int, int]:
        searches = [each for each in self.history.operations if each.kind is Kind.SEARCH and each.user == store.user]
        found = [each for each in searches if store.content in each.found]
        most = sum(bool(same & each.found) for each in searches)
        unanswered = [each for each in searches if each.outcome is not Outcome.OK]
        since = self.history.timeline.eras[-1].begun.last
        return (
            sum(each.begun >= since and not self._may_be_lost(each) for each in found),
            most + len(unanswered),
        )

    def _may_be_lost(self, search: Operation) -> bool:
        return any(
            kill.process == search.process and search.begun <= kill.at <= search.ended + FLUSHED_WITHIN_S
            for kill in self.kills
        )

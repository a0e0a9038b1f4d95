"""How versions are linked: a version names those before it, and each of those names the one after it. Pure.

Most versions follow one other, and name it as `supersedesId`. A merged memory follows several: it names all of them as
`supersedesIds`, and the first of them as `supersedesId` too, so that whoever asks for one predecessor finds one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LINK_KEYS = ("supersedesId", "supersedesIds", "supersededById")

Row = Mapping[str, Any]


def predecessors(row: Row) -> tuple[str, ...]:
    """The ids of the versions right before one, each once, in the order that it names them."""
    if several := row.get("supersedesIds"):
        return tuple(several)
    only = row.get("supersedesId")
    return (only,) if only else ()


def successors(row: Row) -> tuple[str, ...]:
    """The id of the version after one; empty of a head."""
    after = row.get("supersededById")
    return (after,) if after else ()


def is_merged(row: Row) -> bool:
    """Whether a version follows several."""
    return len(predecessors(row)) > 1


def neighbours(row: Row) -> tuple[str, ...]:
    """The ids that a version links to, before and after it."""
    return (*predecessors(row), *successors(row))


def links_to(ids: Sequence[str]) -> dict[str, Any]:
    """What a version that follows these bears; None takes a key away."""
    distinct = list(dict.fromkeys(ids))
    return {
        "supersedesId": distinct[0] if distinct else None,
        "supersedesIds": distinct if len(distinct) > 1 else None,
    }


def replaced(ids: Sequence[str], gone: str, by: Iterable[str]) -> list[str]:
    """Predecessors once one of them is gone and those before it take its place, each once, in order."""
    others = [id_ for id_ in by if id_ not in ids]
    at = ids.index(gone) if gone in ids else len(ids)
    return [*ids[:at], *others, *ids[at + 1 :]]

"""Entity tags of stored rows: what changes them, and what does not."""

from typing import Any

import pytest

from agentmemory_operator.errors import Conflict
from agentmemory_operator.memories.rules.preconditions import (
    ANY,
    Precondition,
    PreconditionFailed,
    check_precondition,
    etag_of,
    is_repeated,
    request_mark,
)

ROW: dict[str, Any] = {
    "id": "m",
    "userId": "u",
    "content": "Zoë trinkt 茶",
    "storedAt": 1,
    "updatedAt": 1,
    "rev": 1,
    "category": "getränk",
    "importance": 0.5,
}
WORK = {
    "rev": 9,
    "updatedAt": 9,
    "accessCount": 3,
    "lastAccessedAt": 9,
    "accessMarks": ["w:1"],
    "sessionUsedAt": 9,
    "usedAt": 9,
    "editMark": "e",
    "loggedAt": 9,
    "windowDue": True,
    "windowIds": ["n"],
    "sessionOrder": 9,
    "distilDue": True,
    "distilBy": "run",
    "requestMarks": ["a:b"],
    "requestEtags": ["a:c"],
    "itemVersions": [],
}


@pytest.mark.parametrize("key", WORK)
def test_work_on_a_point_keeps_the_tag(key: str) -> None:
    assert etag_of({**ROW, key: WORK[key]}) == etag_of(ROW)


@pytest.mark.parametrize(
    "change",
    [
        {"writeMarks": ["a"]},
        {"storedAt": 2},
        {"changedAt": 2},
        {"importance": 0.6},
        {"category": "other"},
        {"knowledgeCategory": "semantic"},
        {"observedBy": ["a"]},
        {"connections": [{"id": "n"}]},
        {"notedByRun": "r"},
        {"supersededById": "n"},
        {"supersedesId": "o"},
        {"supersedesIds": ["o", "p"]},
        {"zone": "PERSONAL"},
        {"id": "n"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_visible_change_changes_the_tag(change: dict[str, Any]) -> None:
    assert etag_of(ROW | change) != etag_of(ROW)


def test_last_write_decides() -> None:
    marked = ROW | {"writeMarks": ["a", "b"]}

    assert etag_of(marked) == etag_of(marked | {"writeMarks": ["b"], "storedAt": 2})
    assert etag_of(marked) != etag_of(marked | {"writeMarks": ["b", "a"]})


@pytest.mark.parametrize("zone", ["PROFESSIONAL", "PERSONAL", "SENSITIVE"])
def test_locked_row_has_its_tag(zone: str) -> None:
    """A row without its encrypted fields, as readers without the key get it."""
    row = ROW | {"zone": zone, "connections": [{"id": "n"}]}
    hidden = {"content", "connections"} | ({"category"} if zone == "SENSITIVE" else set())
    locked = {key: value for key, value in row.items() if key not in hidden} | {"sealed": "k.AAAA"}

    assert etag_of(locked) == etag_of(row)


def test_absent_values_equal_empty_ones() -> None:
    """Qdrant, an import and an older version may omit what is empty."""
    assert etag_of(ROW) == etag_of(ROW | {"observedBy": [], "connections": None, "changedAt": None})
    assert etag_of(ROW | {"importance": 1}) == etag_of(ROW | {"importance": 1.0})


@pytest.mark.parametrize(
    ("etag", "current", "is_met"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", None, False),
        (ANY, "a", True),
        (ANY, None, False),
        (None, None, True),
        (None, "a", False),
    ],
)
def test_condition_is_met(etag: str | None, current: str | None, is_met: bool) -> None:
    failure = Precondition(etag).find_failure(current)

    assert (failure is None) == is_met
    assert failure is None or failure.etag == current


def test_row_is_checked_only_with_a_condition() -> None:
    check_precondition(None, ROW)
    check_precondition(Precondition(etag_of(ROW)), ROW)
    with pytest.raises(PreconditionFailed):
        check_precondition(Precondition("other"), ROW)


def test_request_is_repeated_with_its_key_and_body() -> None:
    mark = request_mark("key", "body")
    buried = f"{mark.partition(':')[0]}:"

    assert not is_repeated(None, [mark])
    assert not is_repeated(mark, [request_mark("other", "body")])
    assert is_repeated(mark, [mark])
    assert is_repeated(mark, [buried])
    with pytest.raises(Conflict, match="already used with another body"):
        is_repeated(request_mark("key", "changed"), [mark])
    assert request_mark("key", "body", secret="s") != mark

"""Late writes in the source of a rebuild, and their effect on the live target."""

from typing import Any

import pytest

from agentmemory_operator.memories.rules.record import ORDER_KEY, TOMBSTONE_KEY, WINDOW_DUE_KEY
from agentmemory_operator.rebuilds.drain import build_late_insert, build_late_update

Row = dict[str, Any]
MOVED_MS = 100
PLAIN: Row = {"content": "a", "rev": 2, "updatedAt": 101, "pending": False}
DEAD: Row = {"rev": 2, "updatedAt": 101, TOMBSTONE_KEY: 101, "pending": False}
LIVE: Row = {"content": "a", "rev": 1, "updatedAt": 50, "pending": False}
IN_SESSION: Row = {ORDER_KEY: 5}


@pytest.mark.parametrize(
    ("row", "changed"),
    [
        pytest.param(PLAIN, {}, id="a memory as it is"),
        pytest.param(PLAIN | {"supersedesId": "b"}, {"pending": True}, id="a newer version as pending"),
        pytest.param(PLAIN | {"supersededById": "b"}, {}, id="an earlier version as it is"),
        pytest.param(DEAD, {}, id="a tombstone as it is"),
        pytest.param(DEAD | {"supersedesId": "b", "pending": True}, {}, id="a tombstone that is to be joined as it is"),
        pytest.param(PLAIN | IN_SESSION, {WINDOW_DUE_KEY: True}, id="its words are looked at again"),
    ],
)
def test_missing_point_is_inserted(row: Row, changed: Row) -> None:
    assert build_late_insert(row) == row | changed


@pytest.mark.parametrize(
    ("row", "live"),
    [
        pytest.param(PLAIN, LIVE | {"rev": 2}, id="it is as new"),
        pytest.param(PLAIN, LIVE | {"updatedAt": MOVED_MS}, id="it was written since the move"),
        pytest.param(PLAIN, {"rev": 1, TOMBSTONE_KEY: 50, "updatedAt": 50}, id="it was deleted"),
        pytest.param(PLAIN | {"supersededById": "b"}, LIVE, id="the source links it to a newer version"),
        pytest.param(PLAIN, LIVE | {"supersededById": "b"}, id="the source makes it the head again"),
        pytest.param(PLAIN | {"supersedesId": "b"}, LIVE | {"supersedesId": "c"}, id="it follows another"),
        pytest.param(PLAIN | {"supersedesId": "b"}, LIVE | {"supersedesId": "b", "pending": True}, id="it is joined"),
    ],
)
def test_target_keeps_its_point(row: Row, live: Row) -> None:
    assert build_late_update(row, live, moved_ms=MOVED_MS) is None


@pytest.mark.parametrize(
    ("row", "live", "changed"),
    [
        pytest.param(PLAIN, LIVE, {}, id="a change of what it says"),
        pytest.param(PLAIN, {"content": "a"}, {}, id="a change of what had neither revision nor time"),
        pytest.param(PLAIN | {"supersedesId": "b"}, LIVE | {"supersedesId": "b"}, {}, id="in its place of its chain"),
        pytest.param(DEAD, LIVE, {}, id="its deletion"),
        pytest.param(
            DEAD | {"supersedesId": "b"}, LIVE | {"supersedesId": "b"}, {"pending": True}, id="the head's deletion"
        ),
        pytest.param(DEAD, LIVE | IN_SESSION, {WINDOW_DUE_KEY: True}, id="whose words others hold"),
    ],
)
def test_target_is_updated(row: Row, live: Row, changed: Row) -> None:
    assert build_late_update(row, live, moved_ms=MOVED_MS) == row | changed

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
        pytest.param(PLAIN, {}, id="memory unchanged"),
        pytest.param(PLAIN | {"supersedesId": "b"}, {"pending": True}, id="newer version as pending"),
        pytest.param(PLAIN | {"supersededById": "b"}, {}, id="earlier version unchanged"),
        pytest.param(DEAD, {}, id="tombstone unchanged"),
        pytest.param(DEAD | {"supersedesId": "b", "pending": True}, {}, id="pending tombstone unchanged"),
        pytest.param(PLAIN | IN_SESSION, {WINDOW_DUE_KEY: True}, id="session keywords become due"),
    ],
)
def test_missing_point_is_inserted(row: Row, changed: Row) -> None:
    assert build_late_insert(row) == row | changed


@pytest.mark.parametrize(
    ("row", "live"),
    [
        pytest.param(PLAIN, LIVE | {"rev": 2}, id="same revision"),
        pytest.param(PLAIN, LIVE | {"updatedAt": MOVED_MS}, id="written since the move"),
        pytest.param(PLAIN, {"rev": 1, TOMBSTONE_KEY: 50, "updatedAt": 50}, id="deleted"),
        pytest.param(PLAIN | {"supersededById": "b"}, LIVE, id="source links a newer version"),
        pytest.param(PLAIN, LIVE | {"supersededById": "b"}, id="source makes it the head again"),
        pytest.param(PLAIN | {"supersedesId": "b"}, LIVE | {"supersedesId": "c"}, id="other predecessor"),
        pytest.param(PLAIN | {"supersedesId": "b"}, LIVE | {"supersedesId": "b", "pending": True}, id="pending link"),
    ],
)
def test_target_keeps_its_point(row: Row, live: Row) -> None:
    assert build_late_update(row, live, moved_ms=MOVED_MS) is None


@pytest.mark.parametrize(
    ("row", "live", "changed"),
    [
        pytest.param(PLAIN, LIVE, {}, id="changed content"),
        pytest.param(PLAIN, {"content": "a"}, {}, id="live point without revision and time"),
        pytest.param(PLAIN | {"supersedesId": "b"}, LIVE | {"supersedesId": "b"}, {}, id="same predecessor"),
        pytest.param(DEAD, LIVE, {}, id="deletion"),
        pytest.param(
            DEAD | {"supersedesId": "b"}, LIVE | {"supersedesId": "b"}, {"pending": True}, id="deletion of a head"
        ),
        pytest.param(DEAD, LIVE | IN_SESSION, {WINDOW_DUE_KEY: True}, id="deletion in a session"),
    ],
)
def test_target_is_updated(row: Row, live: Row, changed: Row) -> None:
    assert build_late_update(row, live, moved_ms=MOVED_MS) == row | changed

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.adapters.qdrant.call_hooks import (
    MAX_SAVED_RETRIES,
    READS_PER_RETRY,
    CallHooks,
    ReadRetries,
    is_write,
)
from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.errors import LeadershipLost, StoreUnavailable
from agentmemory_operator.runtime.metrics import NO_TRACES

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("method", "path", "writes"),
    [
        ("GET", "/collections/a", False),
        ("POST", "/collections/a/points/count", False),
        ("POST", "/collections/a/points/query", False),
        ("POST", "/collections/aliases", True),
        ("POST", "/collections/a/points/delete", True),
        ("PUT", "/collections/a/index", True),
        ("PATCH", "/collections/a", True),
        ("DELETE", "/collections/a", True),
    ],
)
def test_what_a_call_may_change_is_known_by_its_method_and_path(method: str, path: str, writes: bool) -> None:
    assert is_write(method, path) is writes


async def test_a_write_that_is_not_allowed_is_never_sent_and_reading_goes_on() -> None:
    store = QdrantCollections(NOBODY)
    counted: list[tuple[str, str]] = []

    def refuse() -> None:
        raise LeadershipLost("another leads")

    store.watch_calls(
        CallHooks(
            before_write=refuse, count_call=lambda method, outcome: counted.append((method, outcome)), tracer=NO_TRACES
        )
    )

    with pytest.raises(LeadershipLost):
        await store.delete("a")
    with pytest.raises(StoreUnavailable):
        await store.count("a")
    await store.close()
    assert counted == [("POST", "unreachable")]


@given(lost=st.lists(st.booleans(), max_size=400))
def test_at_most_a_tenth_of_the_reads_and_one_are_tried_again(lost: list[bool]) -> None:
    retries, tries = ReadRetries(), 0
    for number, is_lost in enumerate(lost, 1):
        retries.record_read()
        if is_lost and retries.try_take():
            tries += 1
            retries.record_response()

        assert tries <= number / READS_PER_RETRY + 1


def test_what_long_peace_has_saved_up_is_bounded() -> None:
    retries = ReadRetries()
    for _ in range(1000):
        retries.record_read()

    assert [retries.try_take() for _ in range(MAX_SAVED_RETRIES + 1)] == [True] * MAX_SAVED_RETRIES + [False]


def test_there_is_none_while_nothing_answers() -> None:
    retries = ReadRetries()
    retries.record_failure()

    assert not retries.try_take()

    retries.record_response()

    assert retries.try_take()

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

UNREACHABLE_URL = "http://127.0.0.1:1"


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
def test_writes_are_recognised_by_method_and_path(method: str, path: str, writes: bool) -> None:
    assert is_write(method, path) is writes


async def test_forbidden_write_is_not_sent() -> None:
    """Reads are still sent."""

    store = QdrantCollections(UNREACHABLE_URL)
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
def test_retries_are_limited_to_a_share_of_reads(lost: list[bool]) -> None:
    """Retries are at most a tenth of the reads, plus one."""

    retries, tries = ReadRetries(), 0
    for number, is_lost in enumerate(lost, 1):
        retries.record_read()
        if is_lost and retries.try_take():
            tries += 1
            retries.record_response()

        assert tries <= number / READS_PER_RETRY + 1


def test_saved_retries_are_limited() -> None:
    retries = ReadRetries()
    for _ in range(1000):
        retries.record_read()

    assert [retries.try_take() for _ in range(MAX_SAVED_RETRIES + 1)] == [True] * MAX_SAVED_RETRIES + [False]


def test_no_retry_after_a_failure() -> None:
    retries = ReadRetries()
    retries.record_failure()

    assert not retries.try_take()

    retries.record_response()

    assert retries.try_take()

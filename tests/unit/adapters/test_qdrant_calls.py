import pytest

from agentmemory_operator.adapters.qdrant_calls import CallWatch, is_write
from agentmemory_operator.adapters.qdrant_collections import QdrantCollections
from agentmemory_operator.errors import LeadershipLost, StoreUnavailable
from agentmemory_operator.services.tracing import NO_TRACES

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
        CallWatch(
            before_write=refuse, count_call=lambda method, outcome: counted.append((method, outcome)), tracer=NO_TRACES
        )
    )

    with pytest.raises(LeadershipLost):
        await store.delete("a")
    with pytest.raises(StoreUnavailable):
        await store.count("a")
    await store.close()
    assert counted == [("POST", "unreachable")]

"""Change log over HTTP: pages, rights, and bounded streams that can be resumed."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import httpx
import pytest

from agentmemory_operator.agents.callers import CallerCache
from agentmemory_operator.entrypoints.api.identity.auth import IdentityGuard
from agentmemory_operator.entrypoints.api.load.request_slots import Limits
from agentmemory_operator.entrypoints.api.transfer import change_routes
from agentmemory_operator.entrypoints.api.transfer.change_requests import MAX_CURSOR_CHARS
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.memories.rules.recent_entries import MAX_RECENT
from tests.api.conftest import PROBE
from tests.api.test_access import PROBE as GUARDED
from tests.api.test_access import Reviews, ask
from tests.support.engine.fakes import FakeClock
from tests.support.patience import wait_until
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import Stack, create_collection, running_api
from tests.support.web.http_server import check_success

CHANGES, MEMORIES = "/v1/agents/probe/changes", "/v1/agents/probe/memories"
SETTLED_MS = 60_000
STREAM = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="module")
def timed(qdrant_url: str, clock: FakeClock) -> Iterator[Stack]:
    """An API with its own clock and few stream slots."""
    with running_api(qdrant_url, PROBE, clock=clock, limits=Limits(exports=8)) as stack:
        yield stack


@pytest.fixture
def api(timed: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=timed.api_url, timeout=20) as client:
        yield client


@pytest.fixture
def short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_routes, "POLL_S", 0.02)
    monkeypatch.setattr(change_routes, "KEEP_ALIVE_PERIOD_S", 0.1)


def store(api: httpx.Client, user: str, content: str, **more: Any) -> str:
    answer = api.post(MEMORIES, json={"user_id": user, "content": content, "vector": [1.0] * 8, **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def events_of(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """Yield events, including keep-alives."""
    event: dict[str, str] = {}
    for line in lines:
        if not line:
            yield event
            event = {}
        else:
            name, _, value = line.partition(": ")
            event[name] = value


def test_pages_have_ids_and_kinds_and_continue(api: httpx.Client, clock: FakeClock, user: str) -> None:
    old = store(api, user, "lives in Rome")
    clock.move(ms=1)
    new = store(api, user, "lives in Oslo", supersedes=old)
    clock.move(ms=SETTLED_MS)

    page = api.get(CHANGES, params={"user_id": user, "limit": 1}).json()
    rest = api.get(CHANGES, params={"user_id": user, "cursor": page["next_cursor"]}).json()
    end = api.get(CHANGES, params={"user_id": user, "cursor": rest["next_cursor"]}).json()

    entries = [*page["results"], *rest["results"]]
    assert [(entry["kind"], entry["id"], entry["user_id"]) for entry in entries] == [
        ("superseded", old, user),
        ("stored", new, user),
    ]
    assert entries[0].keys() == {"cursor", "at", "kind", "id", "user_id"}
    assert end == {"results": [], "next_cursor": rest["next_cursor"]}
    assert entries[0]["cursor"] == page["next_cursor"]


def test_log_is_read_from_a_time_on(api: httpx.Client, clock: FakeClock, user: str) -> None:
    store(api, user, "lives in Rome")
    clock.move(ms=SETTLED_MS)
    since = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat()
    clock.move(ms=1)
    new = store(api, user, "likes tea")

    page = api.get(CHANGES, params={"user_id": user, "since": since}).json()
    rest = api.get(CHANGES, params={"user_id": user, "since": since, "cursor": page["next_cursor"]}).json()
    later = api.get(CHANGES, params={"user_id": user, "since": "9999-01-01T00:00:00Z"}).json()

    assert [entry["id"] for entry in page["results"]] == [new]
    assert (rest["results"], later["results"]) == ([], [])


def test_change_appears_at_once(api: httpx.Client, clock: FakeClock, user: str) -> None:
    """It is not repeated once no earlier change can still appear."""

    memory = store(api, user, "new")
    page = api.get(CHANGES, params={"user_id": user}).json()
    clock.move(ms=SETTLED_MS)
    after = api.get(CHANGES, params={"user_id": user, "cursor": page["next_cursor"]}).json()
    assert [entry["id"] for entry in page["results"]] == [memory]
    assert after["results"] == []


def test_longest_cursor_is_accepted(api: httpx.Client, user: str) -> None:
    """Also in the header of a reconnecting stream."""
    memories = [
        {"user_id": user, "content": f"memory {number}", "vector": [1.0] * 8} for number in range(MAX_RECENT + 9)
    ]
    for part in chunks_of(memories, 100):
        check_success(api.post(f"{MEMORIES}/batch", json={"memories": part}))
    page = api.get(CHANGES, params={"user_id": user, "limit": 1_000}).json()
    cursor = page["next_cursor"]
    assert len(page["results"]) == MAX_RECENT
    assert 12 * MAX_RECENT < len(cursor) <= MAX_CURSOR_CHARS
    for request in ({"params": {"cursor": cursor}}, {"headers": {"Last-Event-ID": cursor}}):
        answer = api.get(CHANGES, **request)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("parameters", "field"),
    [({"cursor": "x"}, "cursor"), ({"limit": 0}, "limit"), ({"limit": 1001}, "limit"), ({"since": 1}, "since")],
)
def test_wrong_parameter_is_named(api: httpx.Client, parameters: dict[str, Any], field: str) -> None:
    answer = api.get(CHANGES, params=parameters)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


@pytest.mark.parametrize(
    ("name", "of_user", "of_all"),
    [("reader", 200, 403), ("writer", 403, 403), ("bulk", 403, 403), ("stranger", 404, 404), ("keeper", 200, 200)],
)
def test_reading_all_users_needs_admin(
    qdrant_url: str, name: str, of_user: int, of_all: int, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = {"kind": "ServiceAccount", "namespace": "agents", "name": "keeper", "verbs": ["read", "admin"]}
    subjects = [*GUARDED["spec"]["access"]["subjects"], keeper]
    document = GUARDED | {"spec": GUARDED["spec"] | {"access": {"subjects": subjects}}}
    monkeypatch.setattr("tests.api.test_access.NAMES", ("reader", "writer", "bulk", "stranger", "keeper"))
    with running_api(qdrant_url, document, guard=IdentityGuard(CallerCache(Reviews(), clock))) as stack:
        user_status = ask(stack, name, "GET", f"{CHANGES}?user_id=u").status_code
        all_status = ask(stack, name, "GET", CHANGES).status_code
    assert (user_status, all_status) == (of_user, of_all)


def test_foreign_scope_is_not_read(qdrant_url: str, clock: FakeClock) -> None:
    with running_api(qdrant_url, GUARDED, guard=IdentityGuard(CallerCache(Reviews(), clock))) as stack:
        assert ask(stack, "reader", "GET", f"{CHANGES}?user_id=group:team").status_code == 403


@pytest.mark.parametrize(("contents", "kind"), [(False, "rebuilt"), (True, "restored")])
def test_new_collection_is_a_change(qdrant_url: str, clock: FakeClock, user: str, contents: bool, kind: str) -> None:
    """A reader that continues after a rebuild or a restore gets an entry about it."""

    document = agent_document(f"moved-{kind}")
    create_collection(qdrant_url, document)
    path, number = f"/v1/agents/moved-{kind}", clock.now_ms() + 5
    with running_api(qdrant_url, document, clock=clock) as stack, httpx.Client(base_url=stack.api_url) as api:
        memory = {"user_id": user, "content": "c", "vector": [1.0] * 8}
        id_ = api.post(f"{path}/memories", json=memory).json()["id"]
        clock.move(ms=SETTLED_MS)
        cursor = api.get(f"{path}/changes").json()["next_cursor"]
        epoch = {"number": number, "contents": number if contents else 0}
        metadata = {"metadata": {"agentmemoryEpoch": epoch}}
        check_success(httpx.patch(f"{qdrant_url}/collections/agent_memory_moved-{kind}__1", json=metadata))

        def read_new() -> list[Any]:
            return list(api.get(f"{path}/changes", params={"cursor": cursor, "user_id": user}).json()["results"])

        wait_until(read_new, seconds=15)
        [entry] = read_new()
        again = api.get(f"{path}/changes", params={"cursor": entry["cursor"]}).json()["results"]
        from_start = api.get(f"{path}/changes").json()["results"]
    assert (entry["kind"], entry["id"], entry["user_id"]) == (kind, str(number), None)
    assert again == []
    assert [found["id"] for found in from_start] == [id_]


@pytest.mark.usefixtures("short_periods")
def test_stream_sends_changes_and_resumes(api: httpx.Client, user: str) -> None:
    with api.stream("GET", CHANGES, params={"user_id": user}, headers=STREAM) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer.iter_lines())
        assert next(events)["id"]
        with httpx.Client(base_url=api.base_url, timeout=20) as other:
            first = store(other, user, "first")
            received = next(event for event in events if "data" in event)
            second = store(other, user, "second")
    entry = json.loads(received["data"])
    assert (received["event"], entry["id"], entry["cursor"]) == ("stored", first, received["id"])
    with api.stream(
        "GET", CHANGES, params={"user_id": user}, headers=STREAM | {"Last-Event-ID": received["id"]}
    ) as answer:
        event = next(event for event in events_of(answer.iter_lines()) if "data" in event)
    assert json.loads(event["data"])["id"] == second


@pytest.mark.usefixtures("short_periods")
def test_stream_cut_before_its_first_change_loses_none(api: httpx.Client, user: str) -> None:
    """A reader keeps the id of each event that it has received, also of one without data."""
    memory = store(api, user, "first")
    with api.stream("GET", CHANGES, params={"user_id": user}, headers=STREAM) as answer:
        start = next(events_of(answer.iter_lines()))
    resumed = STREAM | {"Last-Event-ID": start.get("id", "")}
    with api.stream("GET", CHANGES, params={"user_id": user}, headers=resumed) as answer:
        received = [json.loads(event["data"]) for event in islice(events_of(answer.iter_lines()), 2) if "data" in event]

    assert [entry["id"] for entry in received] == [memory]


@pytest.mark.usefixtures("short_periods")
def test_idle_stream_sends_keep_alives(api: httpx.Client, user: str) -> None:
    with api.stream("GET", CHANGES, params={"user_id": user}, headers=STREAM) as answer:
        beats = list(islice(events_of(answer.iter_lines()), 3))
    assert all(beat.keys() == {"", "id"} for beat in beats)


@pytest.mark.usefixtures("short_periods")
def test_stream_ends_after_max_duration(api: httpx.Client, user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the maximum duration, a reader has to prove again that it may read."""

    monkeypatch.setattr(change_routes, "MAX_STREAM_S", 0.2)
    with api.stream("GET", CHANGES, params={"user_id": user}, headers=STREAM) as answer:
        assert len(list(events_of(answer.iter_lines()))) >= 2


@pytest.mark.usefixtures("short_periods")
def test_streams_per_caller_are_limited(api: httpx.Client, user: str) -> None:
    """Other requests of the caller still succeed."""

    answers: list[httpx.Response] = []
    clients = [httpx.Client(base_url=api.base_url, timeout=20) for _ in range(8)]
    try:
        for client in clients:
            request = client.build_request("GET", CHANGES, params={"user_id": user}, headers=STREAM)
            answers.append(client.send(request, stream=True))
        statuses = [answer.status_code for answer in answers]
        assert 429 in statuses
        assert statuses[0] == 200
        assert api.get(CHANGES, params={"user_id": user}).status_code == 200
    finally:
        for client in clients:
            client.close()


@pytest.mark.usefixtures("short_periods")
def test_stream_with_bad_cursor_is_an_error(api: httpx.Client) -> None:
    answer = api.get(CHANGES, params={"user_id": "u", "cursor": "x"}, headers=STREAM)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"

"""Privacy zones over HTTP: sealed memories, locked ones, and deleted keys, including the bytes on disk."""

import json
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.memories.repair import Sweeper
from agentmemory_operator.spec.naming import alias_of
from tests.support.web.api_stack import Stack, build_stack_services, create_collection, running_api
from tests.support.web.dev_qdrant import dev_qdrant
from tests.support.zone_agents import Keys, zoned_document

SEALED, SEEN, FEW, CHAINED, NAMED = "sealed", "seen", "few", "chained", "named"
WORDS = {"index": {"keyword": {"enabled": True}}, "lifecycle": {"deduplicate": True}}
DOCUMENTS = (
    zoned_document(SEALED, **WORDS),
    zoned_document(SEEN, {"vectors": ["SENSITIVE", "PERSONAL"], "words": ["PERSONAL"]}, **WORDS),
    zoned_document(FEW, {"allowed": ["PERSONAL"], "vectors": ["PERSONAL"]}),
    zoned_document(NAMED, entities={}, **WORDS),
    zoned_document(CHAINED, types=[{"name": "fact", "supersedeBy": "key", "decay": False}]),
)
ZONES = ("SENSITIVE", "PERSONAL", "PROFESSIONAL")
SECRET = "Xylophonitis was diagnosed on Thursday"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("zones") / "data"


@pytest.fixture(scope="module")
def keys() -> Keys:
    return Keys()


@pytest.fixture(scope="module")
def zoned(data: pathlib.Path, keys: Keys) -> Iterator[Stack]:
    with dev_qdrant(data) as qdrant_url:
        for document in DOCUMENTS:
            create_collection(qdrant_url, document)
        with running_api(qdrant_url, *DOCUMENTS, zone_keys_of=keys.of) as running:
            yield running


@pytest.fixture(scope="module")
def client(zoned: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=zoned.api_url, timeout=20) as client:
        yield client


def store(client: httpx.Client, user: str, content: str, zone: str | None, *, agent: str = SEALED, **more: Any) -> Any:
    body = {"user_id": user, "content": content, "zone": zone, **more}
    answer = client.post(f"/v1/agents/{agent}/memories", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def read(client: httpx.Client, user: str, memory_id: str, *, agent: str = SEALED) -> Any:
    answer = client.get(f"/v1/agents/{agent}/memories/{memory_id}", params={"user_id": user})
    assert answer.status_code == 200, answer.text
    return answer.json()


def search(client: httpx.Client, user: str, query: str, *, agent: str = SEALED) -> list[str]:
    body = {"user_id": user, "query": query, "threshold": -1}
    answer = client.post(f"/v1/agents/{agent}/search", json=body)
    assert answer.status_code == 200, answer.text
    return [found["id"] for found in answer.json()["results"]]


def point(stack: Stack, memory_id: str, agent: str = SEALED) -> Any:
    """Return a point as stored in the engine."""
    body = {"ids": [memory_id], "with_payload": True, "with_vector": True}
    answer = httpx.post(f"{stack.qdrant_url}/collections/{alias_of(agent)}/points", json=body)
    [found] = answer.json()["result"]
    return found


def fields_of(memories: list[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return some fields of memories, by id."""
    return {memory["id"]: [memory[name] for name in names] for memory in memories}


def files_with(folder: pathlib.Path, word: str) -> list[str]:
    """Return the files that contain a word."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


@pytest.mark.parametrize("zone", ZONES)
def test_zoned_memory_is_readable_and_stored_sealed(client: httpx.Client, zoned: Stack, user: str, zone: str) -> None:
    fields = {"metadata": {"ward": "Zeta"}, "context": "in Quorn", "key": "diag", "subject": "Ada", "tags": ["health"]}

    memory_id = store(client, user, SECRET, zone, **fields)

    shown = read(client, user, memory_id)
    assert {name: shown[name] for name in fields} == fields
    assert (shown["content"], shown["zone"], shown["locked"]) == (SECRET, zone, False)
    stored = json.dumps(point(zoned, memory_id)["payload"])
    assert not [word for word in ("Xylo", "Zeta", "Quorn", "diag", "Ada") if word in stored]
    assert ("health" in stored) is (zone != "SENSITIVE")


def test_files_and_snapshots_contain_no_sealed_text(
    client: httpx.Client, zoned: Stack, user: str, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for zone in ZONES:
        store(client, user, f"Hippogriffine {zone} therapy", zone, session_id="s", metadata={"doctor": "Wrzesniewski"})
    store(client, user, "Borborygmus is a word that lies there plainly", None, session_id="s")
    created = httpx.post(f"{zoned.qdrant_url}/collections/{alias_of(SEALED)}__1/snapshots", timeout=60).json()["result"]
    snapshot = tmp_path / "snapshot"
    url = f"{zoned.qdrant_url}/collections/{alias_of(SEALED)}__1/snapshots/{created['name']}"
    snapshot.write_bytes(httpx.get(url, timeout=60).content)
    shutil.unpack_archive(snapshot, tmp_path / "unpacked", format="tar")

    for folder in (data, tmp_path):
        assert files_with(folder, "Borborygmus"), "the words of what is not sealed are found so"
        assert [files_with(folder, word) for word in ("Hippogriffine", "Wrzesniewski")] == [[], []]


def test_sensitive_memory_is_in_no_index(client: httpx.Client, zoned: Stack, user: str) -> None:
    """Neither a vector nor words find the memory; memories of other zones are found."""

    ids = {zone: store(client, user, f"{zone} likes pangolins", zone, session_id="s") for zone in ZONES}
    after = store(client, user, "they talked on", None, session_id="s")

    assert point(zoned, ids["SENSITIVE"])["vector"] in ({}, None)
    assert set(point(zoned, ids["PERSONAL"])["vector"]) != set(point(zoned, after)["vector"])
    assert not point(zoned, after)["payload"].get("windowIds"), "no neighbour holds its words"
    found = search(client, user, "pangolins")
    assert set(found) == {ids["PERSONAL"], ids["PROFESSIONAL"], after}


@pytest.mark.parametrize(
    ("agent", "fields", "field"),
    [
        (FEW, {"zone": "SENSITIVE"}, "zone"),
        (SEALED, {"zone": "PERSONAL", "user_id": "global"}, "zone"),
        (SEALED, {"zone": "Personal"}, "zone"),
    ],
)
def test_unsupported_zone_is_refused(
    client: httpx.Client, user: str, agent: str, fields: dict[str, str], field: str
) -> None:
    answer = client.post(f"/v1/agents/{agent}/memories", json={"user_id": user, "content": "c"} | fields)

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


def test_missing_keys_block_writes_and_lock_reads(client: httpx.Client, keys: Keys, user: str) -> None:
    """Calls on memories without a zone succeed."""

    ids = [store(client, user, f"{zone} likes pangolins", zone) for zone in ("PERSONAL", None)]
    before = search(client, user, "pangolins")

    with keys.unavailable():
        refused = client.post(
            f"/v1/agents/{SEALED}/memories", json={"user_id": user, "content": "c", "zone": "PERSONAL"}
        )
        batch = [{"user_id": user, "content": "c", "zone": zone} for zone in ("SENSITIVE", None)]
        results = client.post(f"/v1/agents/{SEALED}/memories/batch", json={"memories": batch}).json()["results"]
        assert search(client, user, "pangolins")[:2] == before
        shown = read(client, user, ids[0])
        changed = client.patch(
            f"/v1/agents/{SEALED}/memories/{ids[0]}", params={"user_id": user}, json={"metadata": {"a": 1}}
        )
        pinned = client.patch(
            f"/v1/agents/{SEALED}/memories/{ids[0]}", params={"user_id": user}, json={"importance": 0.9}
        )
        page = client.get(f"/v1/agents/{SEALED}/memories", params={"user_id": user}).json()["results"]

    assert refused.status_code == changed.status_code == 503
    assert refused.json()["type"] == "/problems/keys-unavailable"
    assert int(refused.headers["Retry-After"]) >= 1
    assert [result.get("id") is None for result in results] == [True, False]
    assert (shown["content"], shown["locked"], shown["zone"], shown["metadata"]) == (None, True, "PERSONAL", {})
    assert {one["id"]: one["locked"] for one in page}[ids[0]] is True
    assert pinned.json()["importance"] == 0.9
    assert read(client, user, ids[0])["content"] == "PERSONAL likes pangolins"


def test_api_starts_without_keys_and_opens_them_later(
    client: httpx.Client, zoned: Stack, keys: Keys, user: str
) -> None:
    ids = {zone: store(client, user, f"{zone} likes pangolins", zone) for zone in ("PERSONAL", None)}

    with (
        keys.unavailable(),
        running_api(zoned.qdrant_url, DOCUMENTS[0], zone_keys_of=keys.of) as started,
        httpx.Client(base_url=started.api_url, timeout=20) as late,
    ):
        assert late.get("/readyz").status_code == 200
        assert set(search(late, user, "pangolins")) == set(ids.values())
        locked = {zone: read(late, user, memory_id)["locked"] for zone, memory_id in ids.items()}
        assert locked == {"PERSONAL": True, None: False}
        keys.shards.error = None
        assert read(late, user, ids["PERSONAL"])["content"] == "PERSONAL likes pangolins"


def test_metadata_change_stays_sealed(client: httpx.Client, zoned: Stack, user: str) -> None:
    memory_id = store(client, user, SECRET, "SENSITIVE", tags=["one"])
    path, of_user = f"/v1/agents/{SEALED}/memories/{memory_id}", {"user_id": user}

    client.patch(path, params=of_user, json={"metadata": {"ward": "Zeta"}, "tags": ["two"]})

    shown = read(client, user, memory_id)
    assert (shown["metadata"], shown["tags"], shown["content"]) == ({"ward": "Zeta"}, ["two"], SECRET)
    stored = json.dumps(point(zoned, memory_id))
    assert [word for word in ("Zeta", "two") if word in stored] == []


def test_raised_memory_is_sealed_with_its_versions(client: httpx.Client, zoned: Stack, user: str) -> None:
    """The neighbours of the raised memory lose its words."""

    old = store(client, user, "Xylophonitis maybe", None, session_id="s")
    new = store(client, user, "Xylophonitis for sure", None, session_id="s", supersedes=old)
    after = store(client, user, "then they talked on", None, session_id="s")
    assert point(zoned, after)["payload"]["windowIds"] == [new]

    path, of_user = f"/v1/agents/{SEALED}/memories/{new}", {"user_id": user}
    risen = client.patch(path, params=of_user, json={"zone": "SENSITIVE"})

    assert (risen.status_code, risen.json()["zone"]) == (200, "SENSITIVE")
    for memory_id in (old, new):
        stored = point(zoned, memory_id)
        assert "Xylo" not in json.dumps(stored)
        assert stored["vector"] in ({}, None)
    assert not point(zoned, after)["payload"].get("windowIds")
    assert [version["zone"] for version in client.get(f"{path}/history", params=of_user).json()["results"]] == [
        "SENSITIVE",
        "SENSITIVE",
    ]
    successor = {"user_id": user, "content": "c", "supersedes": new}
    assert client.post(f"/v1/agents/{SEALED}/memories", json=successor).status_code == 409
    together = client.patch(path, params=of_user, json={"zone": None, "pinned": True})
    assert (together.status_code, together.json()["errors"][0]["field"]) == (422, "zone")
    # Without identities every caller has all rights.
    assert client.patch(path, params=of_user, json={"zone": None}).json()["zone"] is None
    assert read(client, user, new)["content"] == "Xylophonitis for sure"
    assert set(search(client, user, "Xylophonitis")) == {new, after}


def test_raised_memory_loses_entities_and_connections(client: httpx.Client, zoned: Stack, user: str) -> None:
    ids = [store(client, user, f"Ada Lovelace met Grace Hopper in {year}", None, agent=NAMED) for year in (1842, 1952)]
    sealed = store(client, user, "Ada Lovelace met Alan Turing", "SENSITIVE", agent=NAMED)
    assert "entities" in point(zoned, ids[0], NAMED)["payload"]
    assert "entities" not in point(zoned, sealed, NAMED)["payload"]
    url = f"{zoned.qdrant_url}/collections/{alias_of(NAMED)}/points/payload?wait=true"
    for memory_id, other in (ids, ids[::-1]):
        noted = [{"id": other, "description": "both tell of Xylophonitis", "run": "r"}]
        httpx.post(url, json={"points": [memory_id], "payload": {"connections": noted}}).raise_for_status()

    path, of_user = f"/v1/agents/{NAMED}/memories/{ids[0]}", {"user_id": user}
    assert client.patch(path, params=of_user, json={"zone": "SENSITIVE"}).status_code == 200

    stored = point(zoned, ids[0], NAMED)["payload"]
    assert {"entities", "connections"}.isdisjoint(stored)
    assert point(zoned, ids[1], NAMED)["payload"]["connections"] == []
    assert [one["id"] for one in client.get(path, params=of_user).json()["connections"]] == [ids[1]]


def test_raised_memory_deduplicates_in_its_zone(client: httpx.Client, zoned: Stack, user: str) -> None:
    """The same content in another zone is a different memory."""

    moved = store(client, user, SECRET, None)
    plain_ids = set(point(zoned, moved)["payload"]["lookupIds"])
    path, of_user = f"/v1/agents/{SEALED}/memories/{moved}", {"user_id": user}

    assert client.patch(path, params=of_user, json={"zone": "SENSITIVE"}).status_code == 200

    assert plain_ids.isdisjoint(point(zoned, moved)["payload"]["lookupIds"])
    assert store(client, user, SECRET, "SENSITIVE") == moved
    plain = store(client, user, SECRET, None)
    assert plain != moved
    assert store(client, user, SECRET, None) == plain
    body = {"memories": [{"user_id": user, "content": SECRET, "zone": zone} for zone in (None, "SENSITIVE")]}
    results = client.post(f"/v1/agents/{SEALED}/memories/batch", json=body).json()["results"]
    assert [result["id"] for result in results] == [plain, moved]
    client.delete(f"/v1/agents/{SEALED}/memories/{plain}", params=of_user)
    assert client.patch(path, params=of_user, json={"zone": None}).json()["zone"] is None
    assert store(client, user, SECRET, None) == moved


@pytest.mark.parametrize("is_moved", [True, False], ids=["after it rose", "by the version itself"])
def test_versions_of_a_key_move_into_a_zone(client: httpx.Client, user: str, is_moved: bool) -> None:
    before = store(client, user, "Xylophonitis maybe", None, agent=CHAINED, key="diag")
    path, of_user = f"/v1/agents/{CHAINED}/memories/{before}", {"user_id": user}
    if is_moved:
        client.patch(path, params=of_user, json={"zone": "SENSITIVE"})
        plainly = {"user_id": user, "content": "c", "key": "diag"}
        assert client.post(f"/v1/agents/{CHAINED}/memories", json=plainly).status_code == 409
    other = {"user_id": user, "content": "c", "key": "other", "zone": "SENSITIVE", "supersedes": before}
    assert client.post(f"/v1/agents/{CHAINED}/memories", json=other).status_code == 409

    after = store(client, user, SECRET, "SENSITIVE", agent=CHAINED, key="diag", supersedes=before)

    listed = client.get(f"/v1/agents/{CHAINED}/memories", params=of_user).json()["results"]
    assert [memory["id"] for memory in listed] == [after]
    history = client.get(f"/v1/agents/{CHAINED}/memories/{after}/history", params=of_user).json()["results"]
    assert {memory["id"] for memory in history} == {before, after}


@pytest.mark.parametrize("zone", ["SENSITIVE", "PROFESSIONAL"])
def test_item_key_is_separate_per_zone(client: httpx.Client, zoned: Stack, user: str, zone: str) -> None:
    path, place = f"/v1/agents/{SEALED}/items", {"namespace": ["memories", user], "key": "diag"}
    for content in ("Xylophonitis maybe", "Xylophonitis for sure"):
        put = client.put(path, params=place | {"zone": zone}, json={"content": content})
    plain = client.put(path, params=place, json={"content": "nothing"})

    assert put.json()["memory_id"] != plain.json()["memory_id"]
    assert client.get(path, params=place | {"zone": zone}).json()["content"] == "Xylophonitis for sure"
    assert client.get(path, params=place).json()["content"] == "nothing"
    assert "diag" not in json.dumps(point(zoned, put.json()["memory_id"])["payload"])
    assert client.get(f"/v1/agents/{SEALED}/keys", params={"namespace": ["memories", user]}).json()["results"] == [
        "diag",
        "diag",
    ]
    others = place | {"zone": "PERSONAL"}
    assert [client.get(path, params=others).status_code, client.delete(path, params=others).status_code] == [404, 404]
    assert client.delete(path, params=place | {"zone": zone}).status_code == 204
    assert client.get(path, params=place | {"zone": zone}).status_code == 404


def test_export_is_sealed_and_reimports_with_keys(client: httpx.Client, user: str) -> None:
    for zone in (*ZONES, None):
        store(client, user, f"{SECRET} {zone}", zone, tags=["t"], metadata={"ward": "Zeta"})
    path = f"/v1/agents/{SEALED}"

    sealed, plain = (
        client.get(f"{path}/export", params={"user_id": user, "plain": flag}).content for flag in ("false", "true")
    )

    assert sealed.count(b"Xylophonitis") == 1
    assert plain.count(b"Xylophonitis") == 4
    for lines in (sealed, plain):
        before = client.get(f"{path}/memories", params={"user_id": user}).json()["results"]
        for memory in before:
            client.delete(f"{path}/memories/{memory['id']}", params={"user_id": user})
        headers = {"Content-Type": "application/x-ndjson"}
        result = client.post(f"{path}/import", params={"user_id": user}, content=lines, headers=headers).json()
        assert result["counts"] == {"lines": 4, "imported": 4, "present": 0, "failed": 0}, result
        after = client.get(f"{path}/memories", params={"user_id": user}).json()["results"]
        names = ("id", "content", "zone", "tags", "metadata", "locked")
        assert fields_of(after, names) == fields_of(before, names)


def test_sealed_line_opens_nowhere_else(client: httpx.Client, user: str) -> None:
    store(client, user, SECRET, "PERSONAL")
    [line, _] = client.get(f"/v1/agents/{SEALED}/export", params={"user_id": user}).content.splitlines()
    headers = {"Content-Type": "application/x-ndjson"}
    moved = json.loads(line) | {"user_id": None, "id": "00000000-0000-4000-8000-000000000001"}
    del moved["user_id"]

    for agent, content in ((SEEN, line), (SEALED, json.dumps(moved).encode())):
        of_user = {"user_id": user}
        result = client.post(f"/v1/agents/{agent}/import", params=of_user, content=content, headers=headers).json()
        assert result["counts"]["failed"] == 1
        assert result["errors"][0]["error"]["detail"].startswith("sealed:")


def test_deleted_key_makes_copies_unreadable(client: httpx.Client, zoned: Stack, user: str) -> None:
    ids = {zone: store(client, user, f"{SECRET} {zone}", zone) for zone in (*ZONES, None)}
    copies = {zone: point(zoned, memory_id) for zone, memory_id in ids.items()}
    path = f"/v1/agents/{SEALED}"

    part = client.post(f"{path}/forget", json={"user_id": user, "crypto": True, "zone": "SENSITIVE"}).json()

    assert (part["counts"]["total"], part["keys_deleted"]) == (1, ["SENSITIVE"])
    assert read(client, user, ids["PERSONAL"])["content"] == f"{SECRET} PERSONAL"
    receipt = client.post(f"{path}/forget", json={"user_id": user, "everything": True}).json()
    assert (receipt["counts"]["total"], sorted(receipt["keys_deleted"])) == (3, ["PERSONAL"])
    listed = client.get(f"{path}/receipts", params={"user_id": user}).json()["results"]
    assert {one["scope"]: sorted(one["keys_deleted"]) for one in listed} == {
        "zone": ["SENSITIVE"],
        "user": ["PERSONAL"],
    }
    # Copies of earlier points, as a snapshot would restore them.
    for zone in ZONES:
        body = {"points": [copies[zone] | {"vector": {}}]}
        httpx.put(f"{zoned.qdrant_url}/collections/{alias_of(SEALED)}/points?wait=true", json=body)
        shown = read(client, user, ids[zone])
        assert shown["locked"] is (zone != "PROFESSIONAL")
    # A new memory of the same user gets a new key.
    assert read(client, user, store(client, user, SECRET, "PERSONAL"))["content"] == SECRET


@pytest.mark.parametrize("zones", [{"organisation": "other"}, None], ids=["another organisation", "no zones any more"])
def test_keys_of_former_organisations_are_deleted(
    client: httpx.Client, zoned: Stack, keys: Keys, user: str, zones: dict[str, str] | None
) -> None:
    memory_id = store(client, user, SECRET, "PROFESSIONAL", agent=SEEN)
    document = zoned_document(SEEN, zones, **WORDS)
    if zones is None:
        del document["spec"]["zones"]

    with (
        running_api(zoned.qdrant_url, document, zone_keys_of=keys.of) as later,
        httpx.Client(base_url=later.api_url, timeout=20) as now,
    ):
        answer = now.post(f"/v1/agents/{SEEN}/forget", json={"crypto": True, "zone": "PROFESSIONAL"})

    assert (answer.status_code, answer.json()["keys_deleted"]) == (200, ["PROFESSIONAL"])
    keys.expire_cached_keys()
    assert read(client, user, memory_id, agent=SEEN)["locked"] is True


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"user_id": "u", "crypto": True, "older_than": "2026-01-01T00:00:00Z"}, "crypto"),
        ({"user_id": "u", "zone": "PERSONAL"}, "zone"),
        ({"user_id": "u", "crypto": True, "zone": "PROFESSIONAL"}, "user_id"),
        ({"crypto": True, "zone": "PERSONAL"}, "user_id"),
        ({}, "user_id"),
    ],
)
def test_selection_not_covered_by_a_key_is_422(client: httpx.Client, fields: dict[str, Any], field: str) -> None:
    answer = client.post(f"/v1/agents/{SEALED}/forget", json=fields)

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


async def test_sweep_adds_vectors_missing_after_a_rebuild(
    client: httpx.Client, zoned: Stack, keys: Keys, user: str
) -> None:
    memory_id = store(client, user, "pangolins are shy", "PERSONAL", agent=SEEN)
    body = {"points": [memory_id], "vector": list(point(zoned, memory_id, SEEN)["vector"])}
    url = f"{zoned.qdrant_url}/collections/{alias_of(SEEN)}/points/vectors/delete?wait=true"
    httpx.post(url, json=body).raise_for_status()
    assert search(client, user, "pangolins", agent=SEEN) == []

    services = build_stack_services(zoned.qdrant_url, DOCUMENTS[1], zone_keys_of=keys.of)
    await Sweeper(services.directory).sweep(SEEN)
    await (await services.directory.open(SEEN)).store.close()

    assert search(client, user, "pangolins", agent=SEEN) == [memory_id]


async def test_sweep_deletes_vectors_no_longer_allowed(
    client: httpx.Client, zoned: Stack, keys: Keys, user: str
) -> None:
    ids = {zone: store(client, user, f"{zone} likes pangolins", zone, agent=SEEN) for zone in ("SENSITIVE", "PERSONAL")}
    plain = store(client, user, "pangolins are shy", None, agent=SEEN)
    assert point(zoned, ids["SENSITIVE"], SEEN)["vector"]
    assert {"", KEYWORD_VECTOR} == set(point(zoned, ids["PERSONAL"], SEEN)["vector"])

    services = build_stack_services(zoned.qdrant_url, zoned_document(SEEN, **WORDS), zone_keys_of=keys.of)
    await Sweeper(services.directory).sweep(SEEN)
    await (await services.directory.open(SEEN)).store.close()

    assert point(zoned, ids["SENSITIVE"], SEEN)["vector"] in ({}, None)
    assert KEYWORD_VECTOR not in point(zoned, ids["PERSONAL"], SEEN)["vector"]
    assert {"", KEYWORD_VECTOR} == set(point(zoned, plain, SEEN)["vector"])
    assert set(search(client, user, "pangolins", agent=SEEN)) == {ids["PERSONAL"], plain}

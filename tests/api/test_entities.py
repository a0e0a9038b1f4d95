"""Entities over HTTP: listing, relations, renames, merges, search and isolation of users."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from agentmemory_client import Client
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import create_collection, running_api

BRAIN = agent_document("brain-1", preset="brain", embedding={"provider": "wordllama", "dimensions": 64})
OWN = agent_document(
    "own",
    embedding={"provider": "wordllama", "dimensions": 64},
    index={"keyword": {"enabled": True}},
    entities={
        "systems": [{"name": "Shared Brain", "aliases": ["the brain"]}],
        "technologies": [],
        "ignore": ["Blue Heron Labs"],
    },
)
Json = dict[str, Any]


@pytest.fixture(scope="module")
def api(qdrant_url: str) -> Iterator[httpx.Client]:
    create_collection(qdrant_url, BRAIN)
    create_collection(qdrant_url, OWN)
    with running_api(qdrant_url, BRAIN, OWN) as stack, httpx.Client(base_url=stack.api_url, timeout=30) as client:
        yield client


class Desk:
    """Client of one user of an agent with entities."""

    def __init__(self, api: httpx.Client, agent: str = "brain-1") -> None:
        self.api, self.agent, self.user = api, agent, f"user-{uuid4().hex[:8]}"

    def ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        arguments["params"] = {"user_id": self.user} | arguments.get("params", {})
        if method in ("PUT", "POST") and path in ("/relations", "/search", "/memories", "/forget"):
            del arguments["params"]
        return self.api.request(method, f"/v1/agents/{self.agent}{path}", **arguments)

    def remember(self, content: str, **more: Any) -> str:
        answer = self.ask("POST", "/memories", json={"user_id": self.user, "content": content, **more})
        assert answer.status_code == 201, answer.text
        stored: str = answer.json()["id"]
        return stored

    def relate(self, source: str, relation: str, target: str, **more: Any) -> httpx.Response:
        body = {"user_id": self.user, "source": source, "relation": relation, "target": target, **more}
        return self.ask("PUT", "/relations", json=body)

    def names(self) -> list[str]:
        return [entity["name"] for entity in self.ask("GET", "/entities").json()["results"]]

    def entity(self, name: str) -> Json:
        answer = self.ask("GET", f"/entities/{name}")
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def search(self, query: str, **more: Any) -> list[Json]:
        answer = self.ask("POST", "/search", json={"user_id": self.user, "query": query, "explain": True, **more})
        assert answer.status_code == 200, answer.text
        found: list[Json] = answer.json()["results"]
        return found


@pytest.fixture
def desk(api: httpx.Client) -> Desk:
    return Desk(api)


def test_memory_shows_its_entities(desk: Desk) -> None:
    memory = desk.remember("Anna Schmidt moved shop.example to nextjs.")

    found = desk.ask("GET", f"/memories/{memory}").json()["entities"]

    assert found == [
        {"name": desk.user, "kind": "client", "role": "about"},
        {"name": "Anna Schmidt", "kind": "phrase", "role": "mentioned"},
        {"name": "shop.example", "kind": "domain", "role": "mentioned"},
        {"name": "Next.js", "kind": "technology", "role": "mentioned"},
    ]


def test_names_are_listed_by_memory_count(desk: Desk) -> None:
    desk.remember("Anna Schmidt called.")
    desk.remember("Anna Schmidt met Carl Novak.")

    pages = desk.ask("GET", "/entities", params={"limit": 2}).json()

    assert pages["results"] == [
        {"name": "Anna Schmidt", "kind": "phrase", "memories": 2},
        {"name": desk.user, "kind": "client", "memories": 2},
    ]
    rest = desk.ask("GET", "/entities", params={"limit": 2, "cursor": pages["next_cursor"]}).json()
    assert rest == {"results": [{"name": "Carl Novak", "kind": "phrase", "memories": 1}], "next_cursor": None}


def test_names_are_listed_with_details(desk: Desk) -> None:
    desk.remember("Anna Schmidt met Carl Novak.")
    desk.relate("Anna Schmidt", "works_on", "Blue Heron")

    listed = desk.ask("GET", "/entities", params={"details": "true"}).json()["results"]
    refused = desk.ask("GET", "/entities", params={"details": "true", "limit": 101})

    assert [entity["name"] for entity in listed] == ["Anna Schmidt", "Carl Novak", desk.user, "Blue Heron"]
    assert listed == [desk.entity(name) for name in desk.names()]
    assert refused.status_code == 422


def test_repeated_relation_is_stronger_on_both_sides(desk: Desk) -> None:
    memory = desk.remember("Anna Schmidt called.")

    relations = [desk.relate("anna  schmidt", "works_on", "Blue Heron").json() for _ in range(2)]

    assert relations[1] == {"source": "anna schmidt", "relation": "works_on", "target": "Blue Heron", "strength": 2}
    assert desk.entity("ANNA SCHMIDT") == {
        "name": "Anna Schmidt",
        "kind": "phrase",
        "aliases": [],
        "memories": 1,
        "memory_ids": [memory],
        "neighbours": [{"name": "Blue Heron", "relation": "works_on", "strength": 2, "incoming": False}],
    }
    assert desk.entity("Blue Heron")["neighbours"] == [
        {"name": "Anna Schmidt", "relation": "works_on", "strength": 2, "incoming": True}
    ]


def test_renamed_entity_keeps_its_old_name_as_alias(desk: Desk) -> None:
    desk.remember("Anna Schmidt met Carl Novak.")
    desk.relate("Anna Schmidt", "uses", "Redis")

    renamed = desk.ask("PATCH", "/entities/Anna Schmidt", json={"name": "Anna Novak"}).json()

    assert (renamed["name"], renamed["aliases"], renamed["memories"]) == ("Anna Novak", ["Anna Schmidt"], 1)
    assert desk.entity("anna schmidt") == renamed
    assert "Anna Schmidt" not in desk.names()
    again = desk.ask("PATCH", "/entities/Anna Novak", json={"name": "Anna Schmidt"}).json()
    assert (again["name"], again["aliases"]) == ("Anna Schmidt", ["Anna Novak"])
    assert [entity["name"] for entity in again["neighbours"]] == ["Redis", "Carl Novak"]


def test_merge_joins_memories_and_relations(desk: Desk) -> None:
    desk.remember("Anna Schmidt met Carl Novak.")
    desk.remember("Doctor A. Schmidt met Carl Novak.")
    desk.relate("Anna Schmidt", "uses", "Redis")
    other = next(name for name in desk.names() if name.endswith("A. Schmidt"))
    desk.relate(other, "uses", "Redis")

    merged = desk.ask("PATCH", f"/entities/{other}", json={"merge_into": "anna schmidt"}).json()

    assert (merged["name"], merged["aliases"], merged["memories"]) == ("Anna Schmidt", [other], 2)
    assert [(one["name"], one["strength"]) for one in merged["neighbours"]] == [("Redis", 2), ("Carl Novak", 2)]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"merge_into": "Anna Schmidt"}, 422),
        ({"merge_into": "anna  SCHMIDT"}, 422),
        ({"merge_into": "Nobody Known"}, 422),
        ({"name": "Carl Novak"}, 409),
        ({"name": "a", "merge_into": "b"}, 422),
        ({}, 422),
        ({"name": "two\nlines"}, 422),
        ({"name": "   "}, 422),
        ({"name": "x" * 101}, 422),
        ({"name": "\x00"}, 422),
    ],
)
def test_invalid_change_changes_nothing(desk: Desk, body: Json, status: int) -> None:
    desk.remember("Anna Schmidt met Carl Novak.")
    before = desk.entity("Anna Schmidt")

    answer = desk.ask("PATCH", "/entities/Anna Schmidt", json=body)

    assert answer.status_code == status, answer.text
    assert desk.entity("Anna Schmidt") == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": "anna SCHMIDT"},
        {"relation": "loves"},
        {"relation": "co_occurrence"},
        {"source": "a\nb"},
        {"source": ""},
        {"target": "x" * 101},
        {"strength": 5},
    ],
)
def test_invalid_relation_is_refused(desk: Desk, wrong: Json) -> None:
    relation = {"source": "Anna Schmidt", "relation": "uses", "target": "Redis"} | wrong

    assert desk.relate(**relation).status_code == 422
    assert desk.names() == []


@pytest.mark.parametrize(
    "name",
    ["Zoë 東京 🚀", "İstanbul\u200b Be\u015fikta\u015f", "ﬀ\u2019s „Ding“", "a/b/c", "%2e%2e", "Ⅳ́ Corp", "x" * 100],
)
def test_unusual_names_roundtrip(desk: Desk, name: str) -> None:
    assert desk.relate(name, "uses", "Redis").status_code == 200

    listed = desk.names()

    assert sorted(listed) == sorted([" ".join(name.split()), "Redis"])
    found = desk.api.get(f"/v1/agents/brain-1/entities/{quoted(name)}", params={"user_id": desk.user})
    assert found.json()["neighbours"][0]["name"] == "Redis"


def quoted(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())


def test_search_follows_names_and_explains_it(desk: Desk) -> None:
    desk.remember("Anna Schmidt leads Blue Heron Labs.")
    desk.remember("Blue Heron Labs keeps its orders in Postgres.")
    desk.remember("Lunch is at noon.")

    found = desk.search("Anna Schmidt")

    assert {one["content"]: round(one["explain"]["entities"], 2) for one in found}[
        "Blue Heron Labs keeps its orders in Postgres."
    ] == 0.16
    for memory in found:
        assert memory["explain"]["score"] == pytest.approx(memory["score"], abs=1e-5)


def test_entities_are_private_to_their_user(api: httpx.Client) -> None:
    ada, bob = Desk(api), Desk(api)
    ada.remember("Anna Schmidt met Carl Novak.")
    ada.relate("Anna Schmidt", "uses", "Redis")
    ada.ask("PATCH", "/entities/Anna Schmidt", json={"name": "The Boss"}).raise_for_status()
    bob.remember("The Boss is at home, Carl Novak too.")

    assert bob.ask("GET", "/entities/Anna Schmidt").status_code == 404
    assert bob.ask("PATCH", "/entities/Anna Schmidt", json={"name": "x"}).status_code == 404
    assert set(bob.names()) == {bob.user, "Carl Novak"}
    assert [one["explain"]["entities"] for one in bob.search("Anna Schmidt")] == [None]
    assert [one["explain"]["entities"] for one in ada.search("Anna Schmidt")] == [pytest.approx(1.16)]
    assert "Redis" not in json.dumps(bob.ask("GET", "/export").text)


def test_erasure_removes_all_names(desk: Desk) -> None:
    desk.remember("Anna Schmidt met Carl Novak.")
    desk.relate("Anna Schmidt", "uses", "Redis")

    answer = desk.ask("POST", "/forget", json={"user_id": desk.user, "everything": True})

    assert answer.json()["counts"]["total"] == 1
    assert desk.names() == []
    assert desk.relate("Carl Novak", "uses", "Redis").json()["strength"] == 1
    assert sorted(desk.names()) == ["Carl Novak", "Redis"]


def test_export_carries_relations_and_aliases(api: httpx.Client) -> None:
    ada, bob = Desk(api), Desk(api)
    ada.remember("Anna Schmidt met Carl Novak.")
    ada.relate("Anna Schmidt", "uses", "Redis")
    ada.relate("Anna Schmidt", "uses", "Redis")
    ada.ask("PATCH", "/entities/Anna Schmidt", json={"name": "Anna Novak"})
    lines = ada.ask("GET", "/export").text.splitlines()
    exported = "\n".join(
        json.dumps({k: v for k, v in json.loads(line).items() if k not in ("id", "user_id")}) for line in lines
    )

    for count in (1, 0):
        imported = bob.ask("POST", "/import", content=exported, headers={"Content-Type": "application/x-ndjson"}).json()
        assert (imported["counts"]["imported"], imported["counts"]["failed"]) == (count, 0), imported

    assert bob.entity("anna schmidt")["neighbours"] == ada.entity("anna schmidt")["neighbours"]
    assert bob.entity("Anna Novak")["aliases"] == ["Anna Schmidt"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"relations": [{"source": "a", "relation": "loves", "target": "b"}]},
        {"relations": [{"source": "a", "relation": "uses", "target": "b", "strength": 0}]},
        {"aliases": [{"alias": "a"}]},
        {"aliases": [{"alias": str(n), "name": "b"} for n in range(1_001)]},
        {"more": 1},
        [],
    ],
)
def test_invalid_entities_line_fails_alone(desk: Desk, wrong: Any) -> None:
    text = json.dumps({"entities": wrong}) + "\n" + json.dumps({"content": "Anna Schmidt called."})

    imported = desk.ask("POST", "/import", content=text, headers={"Content-Type": "application/x-ndjson"}).json()

    assert (imported["counts"]["imported"], imported["counts"]["failed"]) == (1, 1)
    assert set(desk.names()) == {desk.user, "Anna Schmidt"}


def test_scope_is_limited_to_thousand_relations(desk: Desk) -> None:
    entities = {"relations": [{"source": "a", "relation": "uses", "target": f"b {n}"} for n in range(1_000)]}
    imported = desk.ask(
        "POST", "/import", content=json.dumps({"entities": entities}), headers={"Content-Type": "application/x-ndjson"}
    ).json()
    assert imported["counts"]["failed"] == 0, imported

    assert desk.relate("a", "uses", "one more").status_code == 409
    assert desk.relate("a", "uses", "b 1").json()["strength"] == 2


def test_long_text_and_query_are_bounded(desk: Desk) -> None:
    names = [f"{a}{b} {c}{b}" for a in "BCDFGHJKLM" for b in ("ola", "eno", "ira", "uma") for c in "NPQRSTVWXZ"]
    memory = desk.remember(". ".join(f"The {name}" for name in names))

    found = desk.search("word " * 2_000 + names[0])

    assert len(desk.ask("GET", f"/memories/{memory}").json()["entities"]) == 32
    assert found[0]["id"] == memory
    assert desk.entity(names[0])["memories"] == 1


def test_object_has_its_own_entity_lists(api: httpx.Client) -> None:
    own = Desk(api, "own")
    own.remember("Blue Heron Labs asked THE brain about Redis, PostgreSQL and Jira.")

    assert set(own.names()) == {own.user, "Shared Brain"}


def test_agent_without_entities_is_422(client: httpx.Client) -> None:
    plain = Desk(client, "words")

    refused = [
        plain.ask("GET", "/entities"),
        plain.ask("GET", "/entities/x"),
        plain.ask("PATCH", "/entities/x", json={"name": "y"}),
        plain.relate("a", "uses", "b"),
    ]

    assert [answer.status_code for answer in refused] == [422] * 4
    assert all("spec.entities.enabled" in answer.text for answer in refused)
    memory = plain.remember("Anna Schmidt called.")
    assert plain.ask("GET", f"/memories/{memory}").json()["entities"] == []


def test_client_manages_entities(api: httpx.Client, desk: Desk) -> None:
    desk.remember("Anna Schmidt met Carl Novak.")
    with Client(str(api.base_url)) as client:
        user = client.agent("brain-1").user(desk.user)
        relation = user.relate("Anna Schmidt", "uses", "a/b")
        renamed = user.rename_entity("a/b", "A and B")
        user.merge_entity("carl novak", "Anna Schmidt")
        names = [(entity.name, entity.memories) for entity in user.entities()]
        details = user.entity("Carl Novak")

    assert (relation.strength, renamed.aliases) == (1, ("a/b",))
    assert names == [("Anna Schmidt", 1), (desk.user, 1), ("A and B", 0)]
    assert (details.name, details.aliases, len(details.memory_ids)) == ("Anna Schmidt", ("Carl Novak",), 1)
    assert [entity["name"] for entity in details.neighbours] == ["A and B"]

"""A complete run of the retrieval API, valid and invalid requests, with canaries in every field that a caller sets."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.cluster.canaries.canaries import Canaries, Leak
from tests.support.cluster.canaries.echoes import EchoingEmbedder, EchoingProxy, ResponseBuilder

Json = dict[str, Any]
OK, CREATED, DONE = 200, 201, 204
UNKNOWN = "018f0000-0000-7000-8000-000000000000"
# Characters at each end of a request body that are searched for its own canaries. In between, long bodies repeat them.
MAX_SEARCHED_CHARS = 20_000
JSON_TYPE = {"Content-Type": "application/json"}


@dataclass(slots=True)
class Conversation:
    """Calls of one caller. Each error response is searched for canaries that the request itself did not contain.

    Attributes:
        leaks: Canaries in error responses that were not in the request.
        errors: Number of error responses.
    """

    canaries: Canaries
    http: httpx.Client
    leaks: list[Leak] = field(default_factory=list)
    errors: int = 0

    def send(self, expected: int | Collection[int], method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request; return the response, which must have an expected status."""
        built = self.http.build_request(method, path, **request)
        answer = self.http.send(built)
        statuses = {expected} if isinstance(expected, int) else {*expected}
        assert answer.status_code in statuses, f"{method} {path}: {answer.status_code} {answer.text}"
        if answer.is_error or '"error"' in answer.text:
            self.errors += 1
            body = built.content.decode(errors="replace")
            own = (
                str(built.url),
                body[:MAX_SEARCHED_CHARS],
                body[-MAX_SEARCHED_CHARS:],
                built.headers.get("Idempotency-Key", ""),
            )
            besides = self.canaries.names_in(*own)
            place = f"the answer {answer.status_code} to {method} {built.url.path}"
            self.leaks += self.canaries.find_leaks(answer.text, place, besides=besides)
            self.leaks += self.canaries.find_leaks(str(answer.headers), f"the headers of {place}")
        return answer


@dataclass(slots=True)
class CanaryFields:
    """Builds texts and names for requests, each a canary of its own."""

    canaries: Canaries

    def text(self, name: str) -> str:
        return self.canaries.text(name)

    def name(self, name: str) -> str:
        return self.canaries.identifier(name)

    def memory(self, user: str, what: str = "a memory", **more: Any) -> Json:
        """Build a memory with canaries in its text fields."""
        return {
            "user_id": user,
            "content": self.text(f"{what}: content"),
            "metadata": {self.name(f"{what}: metadata key"): self.text(f"{what}: metadata value")},
            "tags": [self.text(f"{what}: tag")],
            "subject": self.text(f"{what}: subject"),
            "key": self.text(f"{what}: key"),
            "status_value": self.text(f"{what}: status value"),
            "category": self.text(f"{what}: category"),
            "context": {self.name(f"{what}: context key"): self.text(f"{what}: context value")},
            "author": self.text(f"{what}: author"),
            "speaker": self.text(f"{what}: speaker"),
            "source": "conversation",
            "domain": self.text(f"{what}: domain"),
            "event_type": "user_interaction",
            "session_id": "s1",
        } | more


def send_all_requests(conversation: Conversation, slug: str, user: str) -> None:
    """Send requests of each kind to an agent that embeds texts; a few are refused (409, 401, invalid items)."""
    send, said = conversation.send, CanaryFields(conversation.canaries)
    at = f"/v1/agents/{slug}"
    key = {"Idempotency-Key": said.name("idempotency key")}
    first = said.memory(user)
    mine = {"user_id": user}
    stored = send(CREATED, "POST", f"{at}/memories", json=first, headers=key).json()["id"]
    send(409, "POST", f"{at}/memories", json=first | {"content": said.text("another body")}, headers=key)
    newer = said.memory(user, "a newer version", supersedes=stored)
    head = send(CREATED, "POST", f"{at}/memories", json=newer).json()["id"]
    send(409, "POST", f"{at}/memories", json=said.memory(user, "a second successor", supersedes=stored))
    secret = conversation.canaries.secret("a password in a memory")
    scrubbed = send(CREATED, "POST", f"{at}/memories", json=first | {"content": f"password: {secret}"})
    assert scrubbed.json()["warnings"]
    batch = [said.memory(user, "of a batch"), {**mine, "content": said.text("bad of a batch"), "importance": "huge"}]
    send(OK, "POST", f"{at}/memories/batch", json={"memories": batch})
    for path in ("memories", f"memories/{head}", f"memories/{head}/history", f"memories/{head}/children", "stats"):
        send(OK, "GET", f"{at}/{path}", params=mine)
    send(OK, "GET", f"{at}/memories/{head}/tree", params=mine)
    send(OK, "PATCH", f"{at}/memories/{head}", params=mine, json={"tags": [said.text("a changed tag")]})
    (field_,) = first["metadata"]
    filters = {"AND": [{f"metadata.{field_}": first["metadata"][field_]}]}
    searched = {**mine, "query": said.text("a query"), "filters": filters, "tags": first["tags"], "explain": True}
    send(OK, "POST", f"{at}/search", json=searched)
    send_item_requests(conversation, at, user)
    send_session_requests(conversation, at, user)
    send(OK, "GET", f"{at}/export", params={**mine, "vectors": "true"})
    lines = [said.memory(user, "an imported line"), {**mine, "content": said.text("a bad line"), "importance": "huge"}]
    send(
        OK, "POST", f"{at}/import", params=mine, **ndjson(*map(json.dumps, lines), f'{{"content": "{said.name("half")}')
    )
    send(OK, "POST", f"{at}/forget", json={**mine, "everything": True, "dry_run": True})
    send(OK, "POST", f"{at}/forget", json={**mine, "filters": filters})
    send(OK, "GET", f"{at}/receipts", params=mine)
    send(OK, "GET", f"{at}/users")
    token = send(OK, "POST", f"{at}/tokens", json={**mine, "verbs": ["read"]}).json()["token"]
    conversation.canaries.plant("a user token", token)
    for status, sent in ((OK, token), (401, f"{token}x")):
        send(status, "GET", f"{at}/memories", params=mine, headers={"Authorization": f"Bearer {sent}"})
    send(DONE, "DELETE", f"{at}/memories/{head}", params=mine)


def send_item_requests(conversation: Conversation, at: str, user: str) -> None:
    """Store, read and delete items under keys."""
    send, said = conversation.send, CanaryFields(conversation.canaries)
    namespace = [said.text("part of an item's namespace"), said.text("another part")]
    place = {"user_id": user, "namespace": namespace, "key": said.text("key of an item")}
    item = {"content": said.text("an item"), "metadata": {"k": said.text("metadata of an item")}}
    item |= {"tags": [said.text("tag of an item")], "category": said.text("category of an item")}
    send(OK, "PUT", f"{at}/items", params=place, json=item)
    send(OK, "PUT", f"{at}/items", params=place, json=item | {"content": said.text("a newer item")})
    send(OK, "POST", f"{at}/items/batch", json={"items": [place | item | {"content": said.text("an item of a batch")}]})
    send(OK, "GET", f"{at}/items", params=place)
    send(OK, "GET", f"{at}/items/versions", params=place)
    send(OK, "GET", f"{at}/keys", params={"user_id": user, "namespace": namespace})
    send(OK, "GET", f"{at}/namespaces", params={"user_id": user})
    send(DONE, "DELETE", f"{at}/items", params=place)
    send(404, "GET", f"{at}/items", params=place)


def send_session_requests(conversation: Conversation, at: str, user: str) -> None:
    """Use the working memory of a session."""
    send, said = conversation.send, CanaryFields(conversation.canaries)
    mine = {"user_id": user}
    send(OK, "PUT", f"{at}/sessions/s1/working", params=mine, json={"content": said.text("in mind")})
    send(OK, "GET", f"{at}/sessions/s1/working", params=mine)
    send(OK, "POST", f"{at}/sessions/s1/end", params=mine)


def send_invalid_requests(conversation: Conversation, slug: str, user: str, vector: list[float]) -> None:
    """Send invalid requests of each kind, each with canaries."""
    send, said = conversation.send, CanaryFields(conversation.canaries)
    at = f"/v1/agents/{slug}"
    memories, search, mine = f"{at}/memories", f"{at}/search", {"user_id": user}
    for body in (b'{"user_id": "u", "content": "%s', b'{"content": %s}', b'\xff"%s"', b"%s"):
        send(400, "POST", memories, content=body % said.name("broken JSON").encode(), headers=JSON_TYPE)
    send(415, "POST", memories, content=said.name("plain text"), headers={"Content-Type": "text/plain"})
    for change in bad_changes(said, vector):
        send(422, "POST", memories, json=said.memory(user, "a bad memory") | change)
        send(OK, "POST", f"{memories}/batch", json={"memories": [said.memory(user, "bad of a batch") | change]})
    for change in bad_searches(said, vector):
        send(422, "POST", search, json={**mine, "query": said.text("query of a bad search")} | change)
    send(422, "POST", memories, json=said.text("a string"))
    send(422, "POST", memories, json=[said.text("a list")])
    send(413, "POST", memories, json={**mine, "content": said.text("much too long") * 30_000})
    send(422, "GET", memories, params={**mine, "cursor": said.text("a cursor")})
    send(422, "GET", memories, params={**mine, said.name("unknown parameter"): said.text("its value")})
    send(422, "GET", memories, params={**mine, "limit": said.text("a limit")})
    send(404, "GET", f"{memories}/{UNKNOWN}", params={"user_id": said.text("another user")})
    send(404, "PATCH", f"{memories}/{UNKNOWN}", params=mine, json={"tags": [said.text("tag of none")]})
    send(422, "PATCH", f"{memories}/{UNKNOWN}", params=mine, json={"content": said.text("changed content")})
    send(
        422,
        "PUT",
        f"{at}/items",
        params={**mine, "namespace": said.text("one part"), "key": "k"},
        json={"content": "c"},
    )
    place = {**mine, "namespace": ["a", "b"], "key": said.text("a key\n")}
    send(422, "PUT", f"{at}/items", params=place, json={"content": said.text("an item under a bad key")})
    send(422, "POST", f"{at}/forget", json={**mine, "older_than": said.text("a time")})
    send(
        422, "POST", f"{at}/forget", json={**mine, "filters": {said.text("a field"): {"almost": said.text("a value")}}}
    )
    send(405, "PUT", memories, params={"content": said.text("in a URL")})
    send(404, "GET", "/v1/agents/none/memories", params={"user_id": said.text("user of none")})


def bad_changes(said: CanaryFields, vector: list[float]) -> Iterable[Json]:
    """Return changes, each of which makes a memory invalid."""
    return (
        {"content": {said.name("a key for content"): said.text("an object for content")}},
        {"content": said.text("far too long") * 2_000},
        {said.name("an unknown field"): said.text("its content")},
        {"user_id": said.text("a user with control") + "\x07"},
        {"tags": [said.text("a long tag") * 9]},
        {"tags": said.text("a tag without list")},
        {"importance": said.text("an importance")},
        {"type": said.text("a type")},
        {"created_at": said.text("a time")},
        {"supersedes": said.text("an id")},
        {"metadata": [said.text("metadata in a list")]},
        {"author": said.text("a long author") * 20},
        {"vector": vector},
        {"vector": [*vector[:3], said.text("a number")]},
    )


def bad_searches(said: CanaryFields, vector: list[float]) -> Iterable[Json]:
    """Return searches, each of which is invalid."""
    return (
        {"query": said.text("a long query") * 2_000},
        {"query": [said.text("a query in a list")]},
        {"vector": vector},
        {"top_k": said.text("a count")},
        {"filters": {said.text("an unknown field"): said.text("a filter's value")}},
        {"filters": {"metadata.a": {said.text("an operator"): said.text("an operand")}}},
        {"filters": {"created_at": {"gt": said.text("no time")}}},
        {"types": [said.text("a type to look for")]},
        {"at_time": said.text("no time at all")},
        {"include_scopes": [said.text("a scope")]},
    )


def send_foreign_requests(conversation: Conversation, slug: str, user: str, memory: str, *, expected: int) -> None:
    """Request the data of another tenant or user; each response has status `expected`, 404, or 422 for the search."""
    send, at, mine = conversation.send, f"/v1/agents/{slug}", {"user_id": user}
    for path in (
        "",
        "/memories",
        "/stats",
        f"/memories/{memory}",
        f"/memories/{memory}/history",
        "/namespaces",
        "/export",
    ):
        send((expected, 404), "GET", f"{at}{path}", params=mine if path else None)
    send((expected, 422), "POST", f"{at}/search", json={**mine, "query": "what is there?"})
    send((expected, 404), "PATCH", f"{at}/memories/{memory}", params=mine, json={"tags": []})
    send((expected, 404), "DELETE", f"{at}/memories/{memory}", params=mine)
    stolen = {**mine, "content": "mine", "supersedes": memory, "event_type": "user_interaction"}
    send((expected, 404), "POST", f"{at}/memories", json=stolen)


def ndjson(*lines: str) -> Json:
    """Build the body of an import."""
    return {"content": "\n".join(lines).encode(), "headers": {"Content-Type": "application/x-ndjson"}}


def send_with_failing_embedder(
    conversation: Conversation, slug: str, user: str, embedder: EchoingEmbedder, faults: Iterable[ResponseBuilder]
) -> None:
    """Store and search while the embedding service fails and repeats the request in its responses."""
    for fault in faults:
        embedder.failure, embedder.failure_count = fault, 0
        send_failing_requests(conversation, slug, user)
        assert embedder.failure_count
    embedder.failure = None


def send_with_failing_qdrant(
    conversation: Conversation, slug: str, user: str, proxy: EchoingProxy, faults: Iterable[ResponseBuilder]
) -> None:
    """Store and search while Qdrant refuses all requests for the agent's points and repeats them in its responses."""
    pattern = points_path_pattern(slug)
    for fault in faults:
        proxy.faults[pattern], proxy.answered[pattern] = fault, 0
        send_failing_requests(conversation, slug, user)
        assert proxy.answered[pattern]
    del proxy.faults[pattern]


def points_path_pattern(slug: str, number: str = r"\d+") -> str:
    """Return a pattern for the paths of an agent's points.

    Args:
        number: Pattern of the collection's number.
    """
    return rf"agent_memory_{slug}(__{number})?/points"


def send_failing_requests(conversation: Conversation, slug: str, user: str) -> None:
    """Store a memory and search, which both must fail, and store a batch, which may succeed."""
    send, said, at = conversation.send, CanaryFields(conversation.canaries), f"/v1/agents/{slug}"
    send(range(400, 600), "POST", f"{at}/memories", json=said.memory(user, "while it fails"))
    send(range(400, 600), "POST", f"{at}/search", json={"user_id": user, "query": said.text("query then")})
    send(range(200, 600), "POST", f"{at}/memories/batch", json={"memories": [said.memory(user, "in a batch then")]})

"""Rights on privacy zones: raise, lower, export in plain text, delete keys."""

import asyncio
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.agents.callers import CallerCache
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entrypoints.api.identity.auth import IdentityGuard
from agentmemory_operator.memories import zone_changes
from agentmemory_operator.memories.history import read_version_ids
from agentmemory_operator.memories.rules.record import Payload
from agentmemory_operator.spec.caller_rights import Caller, TokenReviewResult
from tests.support.web.api_stack import create_collection, running_api
from tests.support.web.dev_qdrant import dev_qdrant
from tests.support.zone_agents import Keys, zoned_document

SECRET = "Xylophonitis was diagnosed on Thursday"


def subject(name: str, *verbs: str, **more: Any) -> dict[str, Any]:
    return {"kind": "ServiceAccount", "namespace": "agents", "name": name, "verbs": [*verbs]} | more


SUBJECTS = [
    subject("chief", "read", "write", "admin"),
    subject("writer", "read", "write"),
    subject("of-ada", "read", "write", "admin", users=["ada"]),
]
DOCUMENT = zoned_document("guarded", access={"subjects": SUBJECTS})


class ByName:
    """Reviews a token as the name of an account."""

    async def review(self, token: str) -> TokenReviewResult:
        return TokenReviewResult(caller=Caller("agents", token))


@dataclass(frozen=True, slots=True)
class Site:
    http: httpx.Client

    def ask(self, name: str, method: str, path: str, **arguments: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {name}"}
        return self.http.request(method, f"/v1/agents/guarded{path}", headers=headers, **arguments)

    def store(self, zone: str, user: str = "ada", **more: str) -> str:
        body = {"user_id": user, "content": SECRET, "zone": zone, **more}
        answer = self.ask("writer", "POST", "/memories", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def move(self, name: str, memory_id: str, zone: str | None) -> int:
        parameters = {"user_id": "ada"}
        return self.ask(name, "PATCH", f"/memories/{memory_id}", params=parameters, json={"zone": zone}).status_code


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data: pathlib.Path = tmp_path_factory.mktemp("guarded") / "data"
    guard = IdentityGuard(CallerCache(ByName(), SystemClock()))
    with dev_qdrant(data) as qdrant_url:
        create_collection(qdrant_url, DOCUMENT)
        with (
            running_api(qdrant_url, DOCUMENT, guard=guard, zone_keys_of=Keys().of) as stack,
            httpx.Client(base_url=stack.api_url, timeout=20) as http,
        ):
            yield Site(http)


def test_writers_raise_zones_and_admins_lower_them(site: Site) -> None:
    memory_id = site.store("PROFESSIONAL")

    assert [site.move("writer", memory_id, zone) for zone in ("PERSONAL", "SENSITIVE", "SENSITIVE")] == [200] * 3
    assert [site.move("writer", memory_id, zone) for zone in ("PERSONAL", "PROFESSIONAL", None)] == [403] * 3
    assert site.move("chief", memory_id, None) == 200


def test_writers_lower_no_later_version(site: Site) -> None:
    old = site.store("PROFESSIONAL")
    new = site.store("SENSITIVE", supersedes=old)

    assert site.move("writer", old, "PERSONAL") == 200

    zones = [
        site.ask("chief", "GET", f"/memories/{each}", params={"user_id": "ada"}).json()["zone"] for each in (old, new)
    ]
    assert zones == ["PERSONAL", "SENSITIVE"]


def test_version_added_during_the_move_is_moved(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    old, added = site.store("PROFESSIONAL"), list[str]()

    async def read_and_add(agent: Agent, row: Payload, **how: int) -> list[str]:
        ids = await read_version_ids(agent, row, **how)
        if not added:
            added.append(await asyncio.to_thread(site.store, "PROFESSIONAL", supersedes=old))
        return ids

    monkeypatch.setattr(zone_changes, "read_version_ids", read_and_add)

    assert site.move("writer", old, "SENSITIVE") == 200
    shown = site.ask("chief", "GET", f"/memories/{added[0]}", params={"user_id": "ada"}).json()
    assert shown["zone"] == "SENSITIVE"


def test_only_admins_export_in_plain_text(site: Site) -> None:
    site.store("PERSONAL", "eve")
    answers = {
        (name, plain): site.ask(name, "GET", "/export", params={"user_id": "eve", "plain": plain})
        for name in ("writer", "chief")
        for plain in ("false", "true")
    }

    assert answers["writer", "true"].status_code == 403
    assert answers["writer", "true"].json()["errors"][0]["field"] == "plain"
    assert {place: SECRET in answer.text for place, answer in answers.items()} == {
        ("writer", "false"): False,
        ("writer", "true"): False,
        ("chief", "false"): False,
        ("chief", "true"): True,
    }


@pytest.mark.parametrize(
    ("name", "selection"),
    [
        ("writer", {"user_id": "ada", "everything": True}),
        ("writer", {"user_id": "ada", "zone": "SENSITIVE"}),
        ("writer", {"zone": "PROFESSIONAL"}),
        ("of-ada", {"user_id": "bob", "everything": True}),
        ("of-ada", {"zone": "PROFESSIONAL"}),
    ],
)
def test_deletion_of_foreign_keys_is_403(site: Site, name: str, selection: dict[str, str]) -> None:
    ids = {user: site.store("PROFESSIONAL", user) for user in ("ada", "bob")}

    answer = site.ask(name, "POST", "/forget", json={"crypto": True, **selection})

    assert answer.status_code == 403, answer.text
    for user, memory_id in ids.items():
        shown = site.ask("chief", "GET", f"/memories/{memory_id}", params={"user_id": user}).json()
        assert (shown["content"], shown["locked"]) == (SECRET, False)

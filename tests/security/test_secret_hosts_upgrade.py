"""An upgrade to where Secrets say where they may go, on real parts: Warn, annotate, Require.

What version 4f95245 leaves in a cluster: Secrets without an annotation, and values handed over to the API under the
reference alone. (Tried once with that version itself in the place of the operator that `old` runs.)
"""

import contextlib
import pathlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest

from agentmemory_operator.connections.rules.handover import slot_of
from agentmemory_operator.connections.rules.secret_hosts import NOWHERE
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import (
    API_HERE,
    NAMESPACE,
    ON_LOOPBACK,
    OPERATOR_HERE,
    container_of,
    install,
    shell,
)
from tests.support.cluster.operators import LEADING, start_operator
from tests.support.cluster.tenants import QDRANT_KEY, Account
from tests.support.cluster.workspace import AGENT, CONNECTION, Workspace
from tests.support.patience import wait_until
from tests.support.programs import Program, running, start_qdrant
from tests.support.spec.documents import Document
from tests.support.web.http_server import serve
from tests.support.web.s3_server import BUCKET, KEY, serving_s3
from tests.support.web.services import FakeOpenAI

MODEL_KEY, SIZE = "sk-of-the-platform", 8
NOT_USABLE = "True/SecretNotUsable"
QDRANT_REF, OPENAI_REF = {"name": "qdrant", "key": "api-key"}, {"name": "openai", "key": "key"}


@dataclass(frozen=True, slots=True)
class Old:
    """A namespace whose objects an operator has looked after that asked no Secret where it may go.

    Attributes:
        bot: whom the agent lets in.
    """

    seen: Workspace
    bot: Account
    service: FakeOpenAI

    def ask(self, api_url: str) -> int:
        """Search for words, which have to be embedded; return the status."""
        head = {"Authorization": f"Bearer {self.bot.token()}"}
        body = {"user_id": "u", "query": "the printer"}
        url = f"{api_url}/v1/agents/{self.seen.slug}/search"
        return httpx.post(url, json=body, headers=head, timeout=30).status_code

    def wait_answer(self, api_url: str) -> None:
        wait_until(lambda: self.ask(api_url) == 200, seconds=30, what="an answer of the API")

    def snapshot(self, name: str, wanted: str) -> Document:
        """Have a snapshot made and copied to the storage; return the condition that it comes to."""
        self.seen.create_snapshot(name, verify="None")
        return self.seen.wait_condition("Succeeded", wanted, name=name, of="MemorySnapshot", seconds=40)


@pytest.fixture
def old(control_plane: ControlPlane, tmp_path: pathlib.Path) -> Iterator[Old]:
    """Nothing is annotated, and what was handed over lies under the reference alone."""
    install(control_plane)
    service = FakeOpenAI(dimensions=SIZE)
    qdrant, qdrant_url = start_qdrant(tmp_path / "qdrant", api_key=QDRANT_KEY)
    with running(qdrant), serve(service.app()) as url, serving_s3(tmp_path / "s3") as storage:
        seen = Workspace(control_plane, control_plane.create_namespace("old-"), qdrant_url)
        seen.qdrant.headers["api-key"] = QDRANT_KEY
        seen.create_secret("qdrant", **{"api-key": QDRANT_KEY})
        seen.create_secret("openai", key=MODEL_KEY)
        seen.create_secret("s3", **{"access-key-id": KEY.id, "secret-access-key": KEY.secret})
        seen.connect(apiKeySecretRef=QDRANT_REF)
        bot = Account.create(control_plane, seen.namespace, "bot")
        seen.create(
            embedding={
                "provider": "openai",
                "model": "m",
                "dimensions": SIZE,
                "baseURL": f"{url}/v1",
                "secretRef": OPENAI_REF,
            },
            snapshots={"storage": {"s3": {"endpoint": storage.url, "bucket": BUCKET, "secretRef": {"name": "s3"}}}},
            access={"subjects": [bot.subject("read", "write")]},
        )
        with running(start_operator(control_plane, tmp_path, *OPERATOR_HERE, name="old")) as before:
            seen.wait_ready(seconds=20)
            before.stop()
        leave_as_before(control_plane, seen.slug)
        yield Old(seen, bot, service)
        seen.clean()


class TestUpgrade:
    """Warn, annotate, Require: with what version 4f95245 leaves in a cluster."""

    def test_all_goes_on_and_each_object_is_told_once(
        self, control_plane: ControlPlane, tmp_path: pathlib.Path, old: Old
    ) -> None:
        with serving(control_plane, tmp_path, "Warn") as (api_url, start):
            old.wait_answer(api_url)
            with running(start()):
                lines = [warned(old.seen, CONNECTION, "QdrantConnection", "qdrant")]
                lines.append(warned(old.seen, AGENT, "AgentMemory", "openai"))
                old.snapshot("one", "True/SnapshotTaken")
                lines.append(warned(old.seen, "one", "MemorySnapshot", "s3"))
                # Several passes of each, and a dozen probes' worth of reads.
                for _ in range(6):
                    old.seen.request_pass()
                    time.sleep(1)
                old.wait_answer(api_url)
                assert old.seen.wait_ready()
                assert [warned(old.seen, *told) for told in TOLD] == lines, "nobody is told twice"
                for line in lines[:2]:
                    shell(control_plane, line)

        with serving(control_plane, tmp_path, "") as (api_url, start), running(start()):
            old.seen.patch(expectedMemories=5_000)
            old.seen.wait_ready(seconds=20)
            old.wait_answer(api_url)
            assert set(old.service.keys) == {f"Bearer {MODEL_KEY}"}
            told = old.snapshot("two", "Unknown/SecretNotUsable")["message"]
            shell(control_plane, command_in(told))
            old.seen.wait_condition("Succeeded", "True/SnapshotTaken", name="two", of="MemorySnapshot", seconds=40)

    def test_what_is_not_annotated_is_told_how_once_it_is_required(
        self, control_plane: ControlPlane, tmp_path: pathlib.Path, old: Old
    ) -> None:
        with serving(control_plane, tmp_path, "") as (api_url, start), running(start()):
            told = old.seen.wait_condition("Stalled", NOT_USABLE, name=CONNECTION, of="QdrantConnection", seconds=20)
            shell(control_plane, command_in(told["message"]))
            # What the connection's pass has found holds for its objects, until the next one of theirs.
            wait_until(lambda: f"/{OPENAI_REF['name']} " in stalled(old.seen), seconds=45, what="the next Secret")
            told = old.seen.wait_condition("Stalled", NOT_USABLE)
            assert old.ask(api_url) != 200
            shell(control_plane, command_in(told["message"]))

            old.seen.wait_ready(seconds=45)
            old.wait_answer(api_url)


TOLD = ((CONNECTION, "QdrantConnection", "qdrant"), (AGENT, "AgentMemory", "openai"), ("one", "MemorySnapshot", "s3"))


@contextlib.contextmanager
def serving(
    control_plane: ControlPlane, folder: pathlib.Path, demand: str
) -> Iterator[tuple[str, Callable[[], Program]]]:
    """Run the API as installed; gives its URL, and what starts the operator beside it.

    Args:
        demand: AGENTMEMORY_SECRET_HOSTS of both; empty leaves it out.
    """
    more = ON_LOOPBACK | ({"AGENTMEMORY_SECRET_HOSTS": demand} if demand else {})
    operator, api = container_of("agentmemory-operator"), container_of("agentmemory-api")
    ports = api.free_ports() | operator.free_ports()

    def start() -> Program:
        started = operator.start(control_plane, folder, *OPERATOR_HERE, ports=ports, more=more)
        started.wait_for(LEADING)
        return started

    with running(api.start(control_plane, folder, *API_HERE, ports=ports, more=more)):
        url = f"http://127.0.0.1:{ports[8080]}"
        wait_until(lambda: httpx.get(f"{url}/healthz").status_code == 200, seconds=20, what="the API")
        yield url, start


def stalled(workspace: Workspace) -> str:
    """Return what the agent's last pass says that it stalls for."""
    found = [one["message"] for one in workspace.status().get("conditions", ()) if one["type"] == "Stalled"]
    return "".join(found)


def leave_as_before(control_plane: ControlPlane, slug: str) -> None:
    """Leave of what was handed over what version 4f95245 would have written."""
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/agentmemory-agent-{slug}"
    kept = control_plane.http.get(path).raise_for_status().json()
    kept["data"] = {slot: value for slot, value in kept["data"].items() if "." not in slot}
    assert set(kept["data"]) == {
        slot_of((kept["metadata"]["annotations"]["agentmemory.dev/owner-namespace"], ref["name"], ref["key"]), NOWHERE)
        for ref in (QDRANT_REF, OPENAI_REF)
    }
    control_plane.http.put(path, json=kept).raise_for_status()


def warned(workspace: Workspace, name: str, kind: str, secret: str) -> str:
    """Return the command that an object was told once for a Secret."""
    path = f"/api/v1/namespaces/{workspace.namespace}/events"

    def found() -> list[Document]:
        items = workspace.control_plane.http.get(path).json()["items"]
        told = [item for item in items if item["reason"] == "SecretNotUsable" and f"/{secret} " in item["message"]]
        return [
            item for item in told if (item["involvedObject"]["kind"], item["involvedObject"]["name"]) == (kind, name)
        ]

    wait_until(found, seconds=20, what=f"an event of {kind} {name}")
    (event,) = found()
    assert (event["type"], event["count"]) == ("Warning", 1)
    return command_in(event["message"])


def command_in(message: str) -> str:
    """Return the command line that a message ends with."""
    command = re.search(r"kubectl -n \S+ annotate secret .* --overwrite$", message)
    assert command, message
    return command[0]

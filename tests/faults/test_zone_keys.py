"""Keys of zones under load: replaced, rewrapped, lost, restored and destroyed, while API processes are killed.

Invariant: acknowledged memories are readable whenever their keys are available; forgotten ones never.
"""

import asyncio
import contextlib
import itertools
import os
import pathlib
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import yaml

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.folder.key_shard_files import FileKeyShards
from agentmemory_operator.spec.naming import alias_of
from agentmemory_operator.spec.times import parse_time, render_second
from agentmemory_operator.zones.keyring import AgentKeys, Keyring
from agentmemory_operator.zones.rewrap import Census, rewrap
from agentmemory_operator.zones.rules.entries import MAX_SHARD_KEYS, Ring
from agentmemory_operator.zones.rules.shards import Shard
from agentmemory_operator.zones.wrapping_keys import WrappingKeys, parse_wrapping_keys
from tests.support.engine.agents import vector_of
from tests.support.engine.interleaved_store import ProcessKilled
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, free_port, running
from tests.support.spec.documents import CLUSTER_ID, agent_document, connection_document
from tests.support.web.api_stack import create_collection
from tests.support.web.dev_qdrant import dev_qdrant
from tests.support.zones import FakeWrapping, new_wrapping_key

SLUG = "zoned"
RING = Ring("agents", SLUG)
USERS = [f"user-{number}" for number in range(9)]
# Users who are forgotten during writes for them; readers do not read their memories.
FORGOTTEN_USERS = [f"gone-{number}" for number in range(3)]
PROCESSES, WRITERS, READERS = 2, 3, 3
PATH = f"/v1/agents/{SLUG}"


@dataclass(slots=True)
class Place:
    """Folder in which the processes find their objects and keys.

    Attributes:
        wrapping: Values of the current wrapping key and of the previous one.
        rotated: Time before which keys are replaced.
    """

    folder: pathlib.Path
    qdrant_url: str
    wrapping: list[str] = field(default_factory=lambda: [new_wrapping_key()])
    rotated: str | None = None

    @property
    def data(self) -> pathlib.Path:
        return self.folder / "data"

    def document(self) -> dict[str, Any]:
        zones: dict[str, Any] = {"allowed": ["SENSITIVE", "PERSONAL"], "keySecretRef": {"name": "zone-key"}}
        zones |= {"rotateKeysBefore": self.rotated} if self.rotated else {}
        return agent_document(SLUG, zones=zones)

    def declare(self) -> None:
        """Write the manifests atomically."""
        values = dict(zip(("key", "key.previous"), self.wrapping, strict=False))
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "zone-key", "namespace": "agents"}}
        documents = [connection_document(), self.document(), secret | {"stringData": values}]
        new = self.folder / "new.yaml"
        new.write_text(yaml.safe_dump_all(documents))
        new.replace(self.folder / "manifests" / "all.yaml")

    def rotate_data_keys(self) -> None:
        """Request the replacement of all existing keys."""
        # Times in objects have a resolution of 1 s.
        time.sleep(1.0)
        self.rotated = render_second(time.time())
        self.declare()

    def rotate_wrapping_key(self) -> None:
        self.wrapping = [new_wrapping_key(), *self.wrapping[:1]]
        self.declare()
        # The operator starts once the API has the key; a replica that lacks a key rereads the Secret once a second.
        time.sleep(2.0)

    def keys(self) -> WrappingKeys:
        current, previous, *_ = *self.wrapping, None
        return parse_wrapping_keys(current, previous, secret="agents/zone-key", key="key")

    def rewrap(self, shards: FileKeyShards | None = None) -> Census:
        """Rewrap all data keys under the current wrapping key, like the operator."""
        return asyncio.run(rewrap(shards or FileKeyShards(self.data), RING, self.keys()))

    def fill_first_shard(self) -> None:
        """Create keys of other users until the keys of the load need several shards."""
        wrapping = FakeWrapping(self.keys())

        async def make() -> None:
            ring, keys = Keyring(FileKeyShards(self.data), SystemClock()), AgentKeys(RING, wrapping)
            for number in range(MAX_SHARD_KEYS):
                await ring.get_or_create_key(keys, "PERSONAL", f"other-{number}")

        asyncio.run(make())

    def shard_files(self) -> list[pathlib.Path]:
        return sorted(self.data.glob("zone-keys/*/*.json"))

    def fingerprints(self) -> set[str]:
        """Return the fingerprints of the wrapping keys in use."""

        async def found() -> set[str]:
            shards = FileKeyShards(self.data)
            names = await shards.list_names(RING)
            read = [await shards.read(RING, name) for name in names]
            return {entry.wrapping_fingerprint for shard in read for entry in shard.entries.values()}

        return asyncio.run(found())

    def points(self, filter_: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return up to 10,000 stored points that a filter matches."""
        body = {"limit": 10_000, "with_payload": True, "with_vector": True, "filter": filter_ or {}}
        answer = httpx.post(f"{self.qdrant_url}/collections/{alias_of(SLUG)}/points/scroll", json=body, timeout=30)
        found: list[dict[str, Any]] = answer.json()["result"]["points"]
        return found

    def sealed_before(self) -> int:
        """Count the memories under keys that are to be replaced."""
        before_ms = parse_time(self.rotated)
        return sum(point["payload"].get("keyMadeAt", before_ms) < before_ms for point in self.points())


class MortalShards(FileKeyShards):
    """Shards of a process that is killed after it has written one."""

    async def write(self, shard: Shard) -> str:
        await super().write(shard)
        raise ProcessKilled


@dataclass(slots=True)
class Load:
    """Writers and readers of all processes.

    Attributes:
        acknowledged: Text and user of each acknowledged memory.
        of_forgotten: The same for users who are forgotten.
        wrong: Invalid results of reads and writes.
        has_keys: Set while the keys are available.
    """

    urls: list[str]
    acknowledged: dict[str, tuple[str, str]] = field(default_factory=dict)
    of_forgotten: dict[str, tuple[str, str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    has_keys: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def write(self) -> None:
        with httpx.Client(timeout=20) as client:
            while not self.is_over.is_set():
                number = next(self.numbers)
                with contextlib.suppress(httpx.TransportError):
                    self.store(client, random.choice(self.urls), random.choice([*USERS, *FORGOTTEN_USERS]), number)
                time.sleep(0.01)

    def store(self, client: httpx.Client, url: str, user: str, number: int) -> httpx.Response:
        text, zone = f"secret number {number} of {user}", ("SENSITIVE", "PERSONAL")[number % 2]
        body = {"user_id": user, "content": text, "zone": zone, "vector": vector_of(number)}
        answer = client.post(f"{url}{PATH}/memories", json=body)
        self.outcomes[f"write {answer.status_code}"] += 1
        if answer.status_code == 201:
            stored = self.of_forgotten if user in FORGOTTEN_USERS else self.acknowledged
            stored[answer.json()["id"]] = text, user
        elif answer.status_code not in (503, 504):
            self.wrong.append(f"write: {answer.status_code} {answer.text[:200]}")
        return answer

    def read(self) -> None:
        with httpx.Client(timeout=20) as client:
            while not self.is_over.is_set():
                known = list(self.acknowledged)
                if known:
                    with contextlib.suppress(httpx.TransportError):
                        self.check(client, random.choice(self.urls), random.choice(known))
                time.sleep(0.01)

    def check(self, client: httpx.Client, url: str, memory_id: str) -> None:
        """Read a memory and record a wrong content."""
        text, user = self.acknowledged[memory_id]
        had_keys = self.has_keys.is_set()
        answer = client.get(f"{url}{PATH}/memories/{memory_id}", params={"user_id": user})
        if answer.status_code == 503:
            self.outcomes["read 503"] += 1
            return
        found = answer.json() if answer.status_code == 200 else {}
        is_locked = bool(found.get("locked"))
        self.outcomes["locked" if is_locked else "read"] += 1
        may_be_locked = not (had_keys and self.has_keys.is_set())
        if found.get("content") != text and not (is_locked and may_be_locked):
            self.wrong.append(f"read: {answer.status_code}, locked: {is_locked}, {text!r}")


@dataclass(frozen=True, slots=True)
class Processes:
    """API processes and their URLs.

    Attributes:
        starting: Threads that outlive the processes, which would end with the thread that started them.
    """

    programs: list[Program]
    urls: list[str]
    starting: ThreadPoolExecutor

    def restart(self, *numbers: int) -> None:
        """Kill processes and restart them."""
        programs = [self.programs[number] for number in numbers]
        for program in programs:
            program.kill()
        list(self.starting.map(lambda program: program.restart(r"API http"), programs))


@contextlib.contextmanager
def under_load(processes: Processes) -> Iterator[Load]:
    """Write and read continuously."""
    load = Load(processes.urls)
    load.has_keys.set()
    with ThreadPoolExecutor(WRITERS + READERS) as pool:
        running_ = [pool.submit(load.write) for _ in range(WRITERS)] + [pool.submit(load.read) for _ in range(READERS)]
        try:
            yield load
        finally:
            load.is_over.set()
        for future in running_:
            future.result()


@contextlib.contextmanager
def api_processes(place: Place) -> Iterator[Processes]:
    """Run API processes that share a folder of keys, as replicas share a namespace."""
    (place.folder / "manifests").mkdir()
    place.data.mkdir()
    place.declare()
    place.fill_first_shard()
    create_collection(place.qdrant_url, place.document())
    environment = {"QDRANT_URL": place.qdrant_url, "AGENTMEMORY_CLUSTER_ID": CLUSTER_ID}
    folders = ("--manifests", str(place.folder / "manifests"), "--data", str(place.data))
    with contextlib.ExitStack() as stack:
        programs, urls = [], []
        starting = stack.enter_context(ThreadPoolExecutor(PROCESSES))
        for number in range(PROCESSES):
            port = free_port()
            command = (*AGENTMEMORY, "api", "--source", "files", *folders, "--port", str(port))
            programs.append(Program(place.folder / f"api-{number}.log", *command, **environment))
            stack.enter_context(running(programs[-1]))
            urls.append(f"http://127.0.0.1:{port}")
        for url in urls:
            wait_until(lambda url=url: is_ready(url), seconds=60, what="readiness")
        yield Processes(programs, urls, starting)


def is_ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/readyz").status_code == 200
    return False


pytestmark = pytest.mark.faults

PAUSE_S = 1.0


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Iterator[Place]:
    with dev_qdrant(tmp_path / "qdrant") as url:
        yield Place(tmp_path, url)


def test_key_faults_and_kills_lose_nothing(place: Place) -> None:
    with api_processes(place) as processes, under_load(processes) as load:
        time.sleep(PAUSE_S)
        place.rotate_data_keys()
        processes.restart(0)

        place.rotate_wrapping_key()
        assert rewrap_killed_at_each_write(place, processes) > 3
        place.rotate_data_keys()
        # Each process starts with the new wrapping key; keys under the previous one are found now.
        processes.restart(0, 1)
        place.rewrap()
        place.wrapping = place.wrapping[:1]
        place.declare()
        assert len(place.fingerprints()) == 1

        lose_keys_temporarily(place, load, processes)
        lose_one_shard_temporarily(place, load, processes)
        forgotten = [forget(place, load, processes, user, after_s=0.05 * n) for n, user in enumerate(FORGOTTEN_USERS)]
        processes.restart(0, 1)
        time.sleep(PAUSE_S)
        load.is_over.set()
        check_final_state(place, load, processes, {id_ for ids in forgotten for id_ in ids})


def rewrap_killed_at_each_write(place: Place, processes: Processes) -> int:
    """Rewrap the keys under the current wrapping key, dying after each write; return the number of deaths."""
    for deaths in itertools.count():
        try:
            place.rewrap(MortalShards(place.data))
        except ProcessKilled:
            if deaths % 4 == 0:
                processes.restart(deaths // 4 % PROCESSES)
        else:
            return deaths
    raise AssertionError


def lose_keys_temporarily(place: Place, load: Load, processes: Processes) -> None:
    """Remove the folder of keys, restart the processes without it, and put it back."""
    load.has_keys.clear()
    away = place.folder / "away"
    (place.data / "zone-keys").rename(away)
    processes.restart(0, 1)
    before = load.outcomes.copy()
    wait_until(lambda: (load.outcomes - before)["locked"] > 5, seconds=20, what="locked memories")
    wait_until(lambda: (load.outcomes - before)["write 503"] > 5, seconds=20, what="refused writes")
    assert (load.outcomes - before)["write 201"] == 0
    assert place.shard_files() == [], "no other keys were made in the place of lost ones"
    shutil.rmtree(place.data / "zone-keys", ignore_errors=True)
    os.rename(away, place.data / "zone-keys")
    load.has_keys.set()


def lose_one_shard_temporarily(place: Place, load: Load, processes: Processes) -> None:
    """Remove one of several shards, and put it back: only users with keys in it are blocked."""
    _, shard, *others = place.shard_files()
    assert others
    load.has_keys.clear()
    text = shard.read_bytes()
    shard.unlink()
    processes.restart(0, 1)
    before = load.outcomes.copy()
    for outcome in ("locked", "read", "write 503", "write 201"):
        wait_until(lambda outcome=outcome: (load.outcomes - before)[outcome] > 5, seconds=30, what=outcome)
    assert not shard.exists(), "no other keys were made in the place of lost ones"
    shard.write_bytes(text)
    load.has_keys.set()


def forget(place: Place, load: Load, processes: Processes, user: str, *, after_s: float) -> list[str]:
    """Delete a user's keys during writes for the user, and kill the process on the way; return the stored ids.

    The earlier points of the collection are put back, as from a snapshot.

    Args:
        after_s: Seconds from the request to the kill.
    """
    stored = [memory_id for memory_id, (_, owner) in load.of_forgotten.copy().items() if owner == user]
    copies = place.points({"must": [{"has_id": stored}]})
    assert len(copies) == len(stored) > 0
    killing = threading.Timer(after_s, processes.programs[0].kill)
    killing.start()
    with contextlib.suppress(httpx.TransportError):
        ask_to_forget(processes.urls[0], user)
    killing.join()
    # The client repeats the request at another process.
    answer = ask_to_forget(processes.urls[1], user)
    assert answer.status_code == 200, answer.text
    # The keys that the killed process deleted are among the reported ones.
    zones = {copy["payload"]["zone"] for copy in copies}
    assert zones <= {*answer.json()["keys_deleted"]} <= {"PERSONAL", "SENSITIVE"}
    processes.restart(0)
    points = [{**copy, "vector": copy.get("vector") or {}} for copy in copies]
    path = f"{place.qdrant_url}/collections/{alias_of(SLUG)}/points?wait=true"
    httpx.put(path, json={"points": points}).raise_for_status()
    return stored


def ask_to_forget(url: str, user: str) -> httpx.Response:
    body, headers = {"user_id": user, "everything": True, "crypto": True}, {"Idempotency-Key": f"forget-{user}"}
    return httpx.post(f"{url}{PATH}/forget", json=body, headers=headers, timeout=30)


def check_final_state(place: Place, load: Load, processes: Processes, forgotten: set[str]) -> None:
    """Check that all memories are under new keys and readable, except for the forgotten ones."""
    # A process sweeps when it starts.
    for _ in range(5):
        if place.sealed_before() <= len(forgotten):
            break
        processes.restart(0)
        time.sleep(PAUSE_S)
    assert load.wrong == []
    assert place.sealed_before() <= len(forgotten), "all but what nobody can open is under new keys"
    with httpx.Client(timeout=20) as client:
        for memory_id in load.acknowledged:
            load.check(client, processes.urls[1], memory_id)
        assert load.wrong == []
        for url, memory_id in itertools.product(processes.urls, forgotten):
            _, user = load.of_forgotten[memory_id]
            found = client.get(f"{url}{PATH}/memories/{memory_id}", params={"user_id": user}).json()
            assert (found["content"], found["locked"]) == (None, True)
        for user in FORGOTTEN_USERS:
            assert load.store(client, processes.urls[0], user, -1).status_code == 201, "a new key is made"
    assert load.outcomes["write 201"] > 50, load.outcomes
    print(f"{len(load.acknowledged)} memories acknowledged: {dict(load.outcomes)}")

"""Keys of zones under load: replaced, wrapped again, lost, brought back, destroyed, while API processes are killed.

What was acknowledged is read with its text at every moment at which its keys are there; what was forgotten, never.
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
from tests.support.web.api_stack import create_collection, dev_qdrant
from tests.support.zones import FakeWrapping, new_wrapping_key

SLUG = "zoned"
RING = Ring("agents", SLUG)
USERS = [f"user-{number}" for number in range(9)]
# Users who are forgotten while others write for them; what readers read is none of theirs.
GONE = [f"gone-{number}" for number in range(3)]
PROCESSES, WRITERS, READERS = 2, 3, 3
PATH = f"/v1/agents/{SLUG}"


@dataclass(slots=True)
class Place:
    """Where the processes find their objects and keys, which whoever runs them changes.

    Attributes:
        wrapping: the values of the wrapping key in force, and of the one before.
        rotated: the time before which keys are replaced.
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
        """Write the objects down, whole."""
        values = dict(zip(("key", "key.previous"), self.wrapping, strict=False))
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "zone-key", "namespace": "agents"}}
        documents = [connection_document(), self.document(), secret | {"stringData": values}]
        new = self.folder / "new.yaml"
        new.write_text(yaml.safe_dump_all(documents))
        new.replace(self.folder / "manifests" / "all.yaml")

    def rotate_data_keys(self) -> None:
        """Have all keys replaced that there are."""
        # Times in objects are whole seconds.
        time.sleep(1.0)
        self.rotated = render_second(time.time())
        self.declare()

    def rotate_wrapping_key(self) -> None:
        self.wrapping = [new_wrapping_key(), *self.wrapping[:1]]
        self.declare()
        # The operator begins when the API has it; a replica that lacks a key reads the Secret again once a second.
        time.sleep(2.0)

    def keys(self) -> WrappingKeys:
        current, previous, *_ = *self.wrapping, None
        return parse_wrapping_keys(current, previous, secret="agents/zone-key", key="key")

    def rewrap(self, shards: FileKeyShards | None = None) -> Census:
        """Bring all data keys under the wrapping key in force, as the operator does."""
        return asyncio.run(rewrap(shards or FileKeyShards(self.data), RING, self.keys()))

    def fill_the_first_shard(self) -> None:
        """Make keys of so many other users that those of the load lie in several shards."""
        wrapping = FakeWrapping(self.keys())

        async def make() -> None:
            ring, keys = Keyring(FileKeyShards(self.data), SystemClock()), AgentKeys(RING, wrapping)
            for number in range(MAX_SHARD_KEYS):
                await ring.get_or_create_key(keys, "PERSONAL", f"other-{number}")

        asyncio.run(make())

    def shard_files(self) -> list[pathlib.Path]:
        return sorted(self.data.glob("zone-keys/*/*.json"))

    def fingerprints(self) -> set[str]:
        """Return those of the wrapping keys that data keys are under."""

        async def found() -> set[str]:
            shards = FileKeyShards(self.data)
            names = await shards.list_names(RING)
            read = [await shards.read(RING, name) for name in names]
            return {entry.wrapping_fingerprint for shard in read for entry in shard.entries.values()}

        return asyncio.run(found())

    def points(self, filter_: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return the points as they lie."""
        body = {"limit": 10_000, "with_payload": True, "with_vector": True, "filter": filter_ or {}}
        answer = httpx.post(f"{self.qdrant_url}/collections/{alias_of(SLUG)}/points/scroll", json=body, timeout=30)
        found: list[dict[str, Any]] = answer.json()["result"]["points"]
        return found

    def sealed_before(self) -> int:
        """Return how many memories are under keys that are to be replaced."""
        before_ms = parse_time(self.rotated)
        return sum(point["payload"].get("keyMadeAt", before_ms) < before_ms for point in self.points())


class MortalShards(FileKeyShards):
    """Shards of a process that is killed once it has written one."""

    async def write(self, shard: Shard) -> str:
        await super().write(shard)
        raise ProcessKilled


@dataclass(slots=True)
class Load:
    """Writers and readers of all processes.

    Attributes:
        acknowledged: the text and user of each memory that a writer was told is stored.
        of_the_gone: the same of users who are forgotten.
        wrong: what no reader should have seen.
        are_there: set while the keys are where they belong.
    """

    urls: list[str]
    acknowledged: dict[str, tuple[str, str]] = field(default_factory=dict)
    of_the_gone: dict[str, tuple[str, str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    are_there: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def write(self) -> None:
        with httpx.Client(timeout=20) as client:
            while not self.is_over.is_set():
                number = next(self.numbers)
                with contextlib.suppress(httpx.TransportError):
                    self.store(client, random.choice(self.urls), random.choice([*USERS, *GONE]), number)
                time.sleep(0.01)

    def store(self, client: httpx.Client, url: str, user: str, number: int) -> httpx.Response:
        text, zone = f"secret number {number} of {user}", ("SENSITIVE", "PERSONAL")[number % 2]
        body = {"user_id": user, "content": text, "zone": zone, "vector": vector_of(number)}
        answer = client.post(f"{url}{PATH}/memories", json=body)
        self.outcomes[f"write {answer.status_code}"] += 1
        if answer.status_code == 201:
            stored = self.of_the_gone if user in GONE else self.acknowledged
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
        """Read a memory; note it where that is not what was stored."""
        text, user = self.acknowledged[memory_id]
        were_there = self.are_there.is_set()
        answer = client.get(f"{url}{PATH}/memories/{memory_id}", params={"user_id": user})
        if answer.status_code == 503:
            self.outcomes["read 503"] += 1
            return
        found = answer.json() if answer.status_code == 200 else {}
        is_locked = bool(found.get("locked"))
        self.outcomes["locked" if is_locked else "read"] += 1
        may_be_locked = not (were_there and self.are_there.is_set())
        if found.get("content") != text and not (is_locked and may_be_locked):
            self.wrong.append(f"read: {answer.status_code}, locked: {is_locked}, {text!r}")


@dataclass(frozen=True, slots=True)
class Processes:
    """API processes, and where each listens.

    Attributes:
        starting: threads that outlive the processes: those would end with whoever started them.
    """

    programs: list[Program]
    urls: list[str]
    starting: ThreadPoolExecutor

    def restart(self, *numbers: int) -> None:
        """Kill processes where they are, and start them again."""
        programs = [self.programs[number] for number in numbers]
        for program in programs:
            program.kill()
        list(self.starting.map(lambda program: program.restart(r"API http"), programs))


@contextlib.contextmanager
def under_load(processes: Processes) -> Iterator[Load]:
    """Write and read all the time."""
    load = Load(processes.urls)
    load.are_there.set()
    with ThreadPoolExecutor(WRITERS + READERS) as pool:
        running_ = [pool.submit(load.write) for _ in range(WRITERS)] + [pool.submit(load.read) for _ in range(READERS)]
        try:
            yield load
        finally:
            load.is_over.set()
        for one in running_:
            one.result()


@contextlib.contextmanager
def api_processes(place: Place) -> Iterator[Processes]:
    """Run API processes that share a folder of keys, as replicas share a namespace."""
    (place.folder / "manifests").mkdir()
    place.data.mkdir()
    place.declare()
    place.fill_the_first_shard()
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


def test_nothing_acknowledged_is_lost_whatever_happens_to_keys_and_processes(place: Place) -> None:
    with api_processes(place) as processes, under_load(processes) as load:
        time.sleep(PAUSE_S)
        place.rotate_data_keys()
        processes.restart(0)

        place.rotate_wrapping_key()
        assert rewrap_killed_at_each_write(place, processes) > 3
        place.rotate_data_keys()
        # Each has the new wrapping key from its start on; what was made under the one before is found now.
        processes.restart(0, 1)
        place.rewrap()
        place.wrapping = place.wrapping[:1]
        place.declare()
        assert len(place.fingerprints()) == 1

        lose_the_keys_for_a_while(place, load, processes)
        lose_one_shard_for_a_while(place, load, processes)
        forgotten = [forget(place, load, processes, user, after_s=0.05 * n) for n, user in enumerate(GONE)]
        processes.restart(0, 1)
        time.sleep(PAUSE_S)
        load.is_over.set()
        check_the_end(place, load, processes, {id_ for ids in forgotten for id_ in ids})


def rewrap_killed_at_each_write(place: Place, processes: Processes) -> int:
    """Bring the keys under the wrapping key in force, dying after each write; return how often it died."""
    for deaths in itertools.count():
        try:
            place.rewrap(MortalShards(place.data))
        except ProcessKilled:
            if deaths % 4 == 0:
                processes.restart(deaths // 4 % PROCESSES)
        else:
            return deaths
    raise AssertionError


def lose_the_keys_for_a_while(place: Place, load: Load, processes: Processes) -> None:
    """Take the folder of keys away, let processes start without it, and put it back."""
    load.are_there.clear()
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
    load.are_there.set()


def lose_one_shard_for_a_while(place: Place, load: Load, processes: Processes) -> None:
    """Take one shard of several away, and put it back: whose keys it has wait, all others go on."""
    _, shard, *others = place.shard_files()
    assert others
    load.are_there.clear()
    text = shard.read_bytes()
    shard.unlink()
    processes.restart(0, 1)
    before = load.outcomes.copy()
    for outcome in ("locked", "read", "write 503", "write 201"):
        wait_until(lambda outcome=outcome: (load.outcomes - before)[outcome] > 5, seconds=30, what=outcome)
    assert not shard.exists(), "no other keys were made in the place of lost ones"
    shard.write_bytes(text)
    load.are_there.set()


def forget(place: Place, load: Load, processes: Processes, user: str, *, after_s: float) -> list[str]:
    """Delete a user's keys while others write for the user, and kill who does it on the way; return what was stored.

    What lay in the collection before is put back, as from a snapshot.

    Args:
        after_s: when the process is killed, after it was asked.
    """
    stored = [memory_id for memory_id, (_, whose) in load.of_the_gone.copy().items() if whose == user]
    copies = place.points({"must": [{"has_id": stored}]})
    assert len(copies) == len(stored) > 0
    killing = threading.Timer(after_s, processes.programs[0].kill)
    killing.start()
    with contextlib.suppress(httpx.TransportError):
        ask_to_forget(processes.urls[0], user)
    killing.join()
    # Whoever asked asks again, of a process that is there.
    answer = ask_to_forget(processes.urls[1], user)
    assert answer.status_code == 200, answer.text
    assert sorted(answer.json()["keys_deleted"]) == ["PERSONAL", "SENSITIVE"]
    processes.restart(0)
    points = [{**copy, "vector": copy.get("vector") or {}} for copy in copies]
    path = f"{place.qdrant_url}/collections/{alias_of(SLUG)}/points?wait=true"
    httpx.put(path, json={"points": points}).raise_for_status()
    return stored


def ask_to_forget(url: str, user: str) -> httpx.Response:
    return httpx.post(f"{url}{PATH}/forget", json={"user_id": user, "everything": True, "crypto": True}, timeout=30)


def check_the_end(place: Place, load: Load, processes: Processes, forgotten: set[str]) -> None:
    """Check that all is under new keys and read with its text, but for what was forgotten."""
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
            _, user = load.of_the_gone[memory_id]
            found = client.get(f"{url}{PATH}/memories/{memory_id}", params={"user_id": user}).json()
            assert (found["content"], found["locked"]) == (None, True)
        for user in GONE:
            assert load.store(client, processes.urls[0], user, -1).status_code == 201, "a new key is made"
    assert load.outcomes["write 201"] > 50, load.outcomes
    print(f"{len(load.acknowledged)} memories acknowledged: {dict(load.outcomes)}")

"""Keys of zones under load: replaced, wrapped again, lost, brought back, destroyed, while API processes are killed.

What was acknowledged is read with its text at every moment at which its keys are there; what was forgotten, never.
"""

import contextlib
import itertools
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from agentmemory_operator.spec.naming import alias_of
from tests.support.engine.meanwhile import Killed
from tests.support.patience import wait_until
from tests.support.web.api_stack import dev_qdrant
from tests.support.zone_processes import (
    GONE,
    PATH,
    PROCESSES,
    SLUG,
    Load,
    MortalShards,
    Place,
    Processes,
    api_processes,
    under_load,
)

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
        except Killed:
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

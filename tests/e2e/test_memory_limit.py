"""The API under its memory limit: the worst load that docs/operations.md names, and a pod that the kernel kills."""

import contextlib
import json
import pathlib
from collections.abc import Iterator

from tests.e2e.installed import API, RunningCluster
from tests.e2e.pods import (
    CALLS,
    NEEDS_PODS,
    TOKEN,
    CallerPod,
    operate,
    pods_of,
    restarts,
    start_caller,
    through_service,
    wait_rolled_out,
)
from tests.e2e.served_agent import ServedAgent
from tests.support.patience import wait_until
from tests.support.web.http_server import check_success

pytestmark = [*NEEDS_PODS]

# Many callers at once send the bodies that take the most memory; the answers are counted by status.
FLOOD = """
import collections, threading, urllib.error
from agentmemory_operator.entrypoints.api.load.json_limits import MAX_ITEM_PARTS
MIB = 1 << 20
head, tail = b'{"memories":[{"user_id":"u","content":"c","metadata":{"k":[', b"]}}]}"
def filled(piece):
    return head + b",".join([piece] * ((16 * MIB - 100) // (len(piece) + 1))) + tail
objects = [{"a": place} for place in range(1000, 1000 + MAX_ITEM_PARTS // 2 - 600)]
items = [{"user_id": "flood", "content": str(n), "metadata": {"k": objects}} for n in range(15)]
bodies = [json.dumps({"memories": items}).encode(), filled(b"{}"), filled(b"[1]")]
counts = collections.Counter()
def flood(first):
    for turn in range(TURNS):
        head = {"Authorization": "Bearer " + open("TOKEN_FILE").read(), "Content-Type": "application/json"}
        request = urllib.request.Request("URL/memories/batch", bodies[(first + turn) % 3], head)
        try:
            counts[urllib.request.urlopen(request, timeout=100).status] += 1
        except urllib.error.HTTPError as error:
            counts[error.code] += 1
            time.sleep(error.code == 429)
        except OSError:
            # 429 came, and the connection ended, before the whole body was sent.
            counts["refused early"] += 1
            time.sleep(1)
threads = [threading.Thread(target=flood, args=(first,)) for first in range(12)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("counts", json.dumps(counts), flush=True)
time.sleep(1e6)
"""
STORES = """
def store(sent):
    send("/memories", {"user_id": "kept", "content": f"fact {sent}"})
    print("stored fact", sent, flush=True)
repeat(store)
"""

LIST = "memories?user_id=kept&limit=1000"


@contextlib.contextmanager
def small_limit(cluster: RunningCluster) -> Iterator[None]:
    """Give the API inside the context a memory limit that large bodies exceed."""
    operate(cluster, "set", "resources", f"deployment/{API}", "--limits=memory=160Mi", "--requests=memory=64Mi")
    wait_rolled_out(cluster, API)
    yield
    operate(cluster, "rollout", "undo", f"deployment/{API}")
    wait_rolled_out(cluster, API)


def flood(agent: ServedAgent, *, turns: int) -> CallerPod:
    """Start a pod that sends the worst load."""
    program = (CALLS + FLOOD).replace("TURNS", str(turns)).replace("TOKEN_FILE", TOKEN)
    return start_caller(agent, program, name="flood")


def peaks_mib(cluster: RunningCluster) -> dict[str, int]:
    """Return the peak memory of the API's process by pod."""
    names = [pod["metadata"]["name"] for pod in pods_of(cluster, API)]
    lines = {name: operate(cluster, "exec", name, "--", "grep", "VmHWM", "/proc/1/status") for name in names}
    return {name: int(line.split()[1]) >> 10 for name, line in lines.items()}


def killed(cluster: RunningCluster) -> list[str]:
    """Return the names of the API's pods whose last end was a kill for memory."""
    return [
        pod["metadata"]["name"]
        for pod in pods_of(cluster, API)
        for status in pod["status"].get("containerStatuses", ())
        if status["lastState"].get("terminated", {}).get("reason") == "OOMKilled"
    ]


def test_worst_load_fits_the_shipped_limit(cluster: RunningCluster, agent: ServedAgent) -> None:
    before = restarts(cluster)

    flooding = flood(agent, turns=6)
    wait_until(lambda: flooding.lines("counts"), seconds=300, what="the end of the flood")
    counts = json.loads(flooding.lines("counts")[0].removeprefix("counts "))
    print(f"e2e-node: worst load: {counts}, peaks {peaks_mib(cluster)} MiB")

    # 504: Qdrant may be busy.
    assert counts.keys() <= {"200", "422", "429", "504", "refused early"}
    assert {"422", "429"} <= counts.keys()
    assert restarts(cluster) == before
    assert max(peaks_mib(cluster).values()) < 1024


def test_killed_api_loses_no_acknowledged_memory(
    cluster: RunningCluster, agent: ServedAgent, tmp_path: pathlib.Path
) -> None:
    with small_limit(cluster):
        storing = start_caller(agent, CALLS + STORES, name="storing")
        storing.wait_for_calls()
        flood(agent, turns=1000)
        wait_until(lambda: killed(cluster), seconds=120, what="a kill")
        cluster.ask("--namespace", agent.workspace.namespace, "delete", "pod/flood", "--grace-period=0", "--force")
        wait_rolled_out(cluster, API)
        storing.wait_for_calls()
        stored = {line.removeprefix("stored ") for line in storing.lines("stored")}
        with through_service(cluster, agent, tmp_path) as reached:
            listed = check_success(reached.caller.http.get(f"{agent.workspace.slug}/{LIST}")).json()

    assert len(stored) >= 50
    assert stored <= {memory["content"] for memory in listed["results"]}

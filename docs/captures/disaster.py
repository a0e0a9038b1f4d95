"""Write disaster.txt: an agent's collection is deleted and restored while another agent is asked all the time.

`KUBEBUILDER_ASSETS="$(make -s tools)" .venv/bin/python -m docs.captures.disaster`
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import start_api, start_operator
from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until
from tests.support.programs import ROOT, running, start_qdrant

NAMESPACE, LOST, OTHER = "agents", "support-bot", "sales-bot"
SHOWN = Path(__file__).with_name("disaster.txt")
WIDE, PAUSE_S = "120", 0.01
OFFLINE = {"provider": "wordllama", "dimensions": 256}
KNOWN = (
    "Ada pays by invoice, 30 days net",
    "Ada moved to the Berlin office in May",
    "The ingest pods of Ada's team run out of memory at 2 GiB",
    "Ada prefers mail to calls",
)
ASK = f'agentmemory search {LOST} "how does she pay?" --user ada --top-k 1'
COMMANDS = (
    f"agentmemory snapshot create {LOST} --name before-loss --wait",
    f"agentmemory snapshot list {LOST}",
    ASK,
    "# Somebody deletes the collection in Qdrant.",
    f"curl -s -X DELETE $QDRANT_URL/collections/agent_memory_{LOST}__1",
    ASK,
    f"agentmemory restore {LOST} --from before-loss --wait",
    "kubectl get msnap,mrest",
    ASK,
    "kubectl get amem",
)


@dataclass(slots=True)
class Asked:
    """What became of the searches of the other agent."""

    took_ms: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def told(self) -> str:
        """One line."""
        return f"{len(self.took_ms)} searches, {len(self.failed)} failed, the slowest took {max(self.took_ms):.0f} ms"


def main() -> None:
    """Play it and write down what a terminal shows."""
    with (
        tempfile.TemporaryDirectory() as name,
        ControlPlane(Path(os.environ["KUBEBUILDER_ASSETS"])) as plane,
        running((started := start_qdrant(Path(name)))[0]),
    ):
        plane.apply_crds(ROOT / "crds")
        plane.http.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}).raise_for_status()
        with (
            running(start_operator(plane, Path(name))),
            running((serving := start_api(plane, Path(name)))[0]),
        ):
            fill(Workspace(plane, NAMESPACE, started[1]), serving[1])
            SHOWN.write_text(play(plane, qdrant=started[1], api=serving[1]))
    print(SHOWN.read_text())


def fill(workspace: Workspace, api: str) -> None:
    """Make two agents that know something."""
    workspace.connect()
    for agent in (LOST, OTHER):
        workspace.create(agent, agent=agent, embedding=OFFLINE)
        workspace.wait_ready(agent, seconds=30)
        memories = [{"user_id": "ada", "content": text} for text in KNOWN]
        path = f"{api}/v1/agents/{agent}/memories/batch"
        wait_until(
            lambda path=path, memories=memories: httpx.post(path, json={"memories": memories}, timeout=30).is_success,
            seconds=30,
            what=f"the memories of {agent}",
        )


def play(plane: ControlPlane, *, qdrant: str, api: str) -> str:
    """Return what the commands print, and what the other agent's searches came to meanwhile."""
    path = os.pathsep.join([str(plane.assets), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"KUBECONFIG": str(kubeconfig_of(plane)), "PATH": path, "KUBERC": "off"}
    environment |= {"PYTHONUNBUFFERED": "1", "COLUMNS": WIDE, "QDRANT_URL": qdrant, "AGENTMEMORY_URL": api}
    with asking(api) as asked:
        told = [say(command, environment) for command in COMMANDS]
    told.append(f"# {OTHER} meanwhile: {asked.told}\n")
    return "".join(told)


def kubeconfig_of(plane: ControlPlane) -> Path:
    """Return the kubeconfig, with the agents' namespace as its context's."""
    path = plane.kubeconfig.with_name("in-agents")
    path.write_text(plane.kubeconfig.read_text())
    kubectl = [str(plane.assets / "kubectl"), "--kubeconfig", str(path)]
    subprocess.run([*kubectl, "config", "set-context", "--current", f"--namespace={NAMESPACE}"], check=True)
    return path


@contextmanager
def asking(api: str) -> Iterator[Asked]:
    """Ask the other agent until the context ends."""
    asked, ended = Asked(), threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=api, timeout=10) as client:
            while not ended.wait(PAUSE_S):
                begun = time.perf_counter()
                body = {"user_id": "ada", "query": "how does she pay?", "top_k": 1}
                answer = client.post(f"/v1/agents/{OTHER}/search", json=body)
                asked.took_ms.append(1000 * (time.perf_counter() - begun))
                if not (answer.is_success and answer.json()["results"]):
                    asked.failed.append(answer.text)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield asked
    finally:
        ended.set()
        asker.join()


def say(command: str, environment: dict[str, str], folder: Path | None = None) -> str:
    """Return a command as typed, in a folder, and what it printed; a comment is itself."""
    if command.startswith("#"):
        return f"{command}\n"
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    where = {"env": environment, "cwd": folder}
    done = subprocess.run(command, shell=True, text=True, timeout=120, check=False, **where, **both)
    said = done.stdout.rstrip("\n")
    return f"$ {command}\n{said}\n\n"


if __name__ == "__main__":
    main()

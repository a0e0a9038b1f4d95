"""Write disaster.txt: the collection of an agent is deleted and restored while searches of another agent continue.

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
CAPTURE = Path(__file__).with_name("disaster.txt")
COLUMNS, PAUSE_S = "120", 0.01
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
class SearchLog:
    """Results of the searches of the other agent.

    Attributes:
        took_ms: Duration of each search in milliseconds.
        failed: Response text of each search that failed or found nothing.
    """

    took_ms: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """Summary in one line."""
        return f"{len(self.took_ms)} searches, {len(self.failed)} failed, the slowest took {max(self.took_ms):.0f} ms"


def main() -> None:
    """Run the commands and record their output."""
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
            CAPTURE.write_text(run_commands(plane, qdrant=started[1], api=serving[1]))
    print(CAPTURE.read_text())


def fill(workspace: Workspace, api: str) -> None:
    """Create two agents with memories."""
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


def run_commands(plane: ControlPlane, *, qdrant: str, api: str) -> str:
    """Run the commands; return their output, and a summary of the concurrent searches of the other agent."""
    path = os.pathsep.join([str(plane.assets), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"KUBECONFIG": str(kubeconfig_of(plane)), "PATH": path, "KUBERC": "off"}
    environment |= {"PYTHONUNBUFFERED": "1", "COLUMNS": COLUMNS, "QDRANT_URL": qdrant, "AGENTMEMORY_URL": api}
    with background_searches(api) as log:
        output = [run_command(command, environment) for command in COMMANDS]
    output.append(f"# {OTHER} meanwhile: {log.summary}\n")
    return "".join(output)


def kubeconfig_of(plane: ControlPlane) -> Path:
    """Write a kubeconfig with the namespace of the agents as default; return its path."""
    path = plane.kubeconfig.with_name("in-agents")
    path.write_text(plane.kubeconfig.read_text())
    kubectl = [str(plane.assets / "kubectl"), "--kubeconfig", str(path)]
    subprocess.run([*kubectl, "config", "set-context", "--current", f"--namespace={NAMESPACE}"], check=True)
    return path


@contextmanager
def background_searches(api: str) -> Iterator[SearchLog]:
    """Search the other agent repeatedly while the context is open; yield the results."""
    log, ended = SearchLog(), threading.Event()

    def search() -> None:
        with httpx.Client(base_url=api, timeout=10) as client:
            while not ended.wait(PAUSE_S):
                started = time.perf_counter()
                body = {"user_id": "ada", "query": "how does she pay?", "top_k": 1}
                answer = client.post(f"/v1/agents/{OTHER}/search", json=body)
                log.took_ms.append(1000 * (time.perf_counter() - started))
                if not (answer.is_success and answer.json()["results"]):
                    log.failed.append(answer.text)

    thread = threading.Thread(target=search)
    thread.start()
    try:
        yield log
    finally:
        ended.set()
        thread.join()


def run_command(command: str, environment: dict[str, str], folder: Path | None = None) -> str:
    """Run a command in a folder; return it with its output. A comment is returned unchanged."""
    if command.startswith("#"):
        return f"{command}\n"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    options = {"env": environment, "cwd": folder}
    done = subprocess.run(command, shell=True, text=True, timeout=120, check=False, **options, **pipes)
    output = done.stdout.rstrip("\n")
    return f"$ {command}\n{output}\n\n"


if __name__ == "__main__":
    main()

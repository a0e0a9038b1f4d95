"""Write rebuild.txt: a change of an agent's embedding model and its rollback, while clients write and search.

`KUBEBUILDER_ASSETS="$(make -s tools)" .venv/bin/python -m docs.captures.rebuild`
"""

import os
import sys
import tempfile
from pathlib import Path

import httpx

from bench.embedder import DIMENSIONS, embedder, vector_of
from docs.captures.disaster import COLUMNS, NAMESPACE, kubeconfig_of, run_command
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import start_api, start_operator
from tests.support.cluster.traffic.pools import WORDS
from tests.support.cluster.traffic.witness import SPEC, Witness
from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until
from tests.support.programs import ROOT, running, start_qdrant

AGENT, MEMORIES, BATCH = "support-bot", 6000, 500
# Typical duration of a call to a remote provider.
ANSWER_S = 0.2
CAPTURE = Path(__file__).with_name("rebuild.txt")
PATCH = '{"spec": {"embedding": {"model": "two"}}}'
COMMANDS = (
    "# Somebody changes the embedding's model; both have as many dimensions.",
    f"kubectl patch amem {AGENT} --type merge -p '{PATCH}'",
    f"kubectl wait --for=condition=InSync=False amem/{AGENT} --timeout 30s",
    f"agentmemory rebuild {AGENT}",
    f"agentmemory status {AGENT} | grep -A 5 '^Plan'",
    f"agentmemory approve {AGENT}",
    f"agentmemory rebuild {AGENT} --watch",
    "kubectl get amem -o wide",
    "# It finds less than hoped for: back to the model before, with what was written since.",
    f"agentmemory rebuild {AGENT} --rollback --yes",
    f"agentmemory rebuild {AGENT}",
    "kubectl get events -o custom-columns=REASON:.reason,MESSAGE:.message | grep -E 'REASON|Rebuil|Rolled'",
)


def main() -> None:
    """Run the commands and record their output."""
    with (
        tempfile.TemporaryDirectory() as name,
        ControlPlane(Path(os.environ["KUBEBUILDER_ASSETS"])) as plane,
        running((started := start_qdrant(Path(name)))[0]),
        embedder(fail_share=0.0) as provider,
    ):
        plane.apply_crds(ROOT / "crds")
        plane.http.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}).raise_for_status()
        with running(start_operator(plane, Path(name))), running((serving := start_api(plane, Path(name)))[0]):
            workspace = Workspace(plane, NAMESPACE, started[1], claims=AGENT)
            fill(workspace, serving[1], provider.url)
            provider.delay_s = ANSWER_S
            output = run_commands(plane, workspace, serving[1])
    CAPTURE.write_text(output)
    print(output)


def fill(workspace: Workspace, api: str, provider: str) -> None:
    """Create an agent with memories."""
    embedding = {"provider": "openai", "model": "one", "dimensions": DIMENSIONS, "baseURL": provider}
    workspace.connect()
    workspace.create(AGENT, **SPEC | {"embedding": embedding})
    workspace.wait_ready(AGENT, seconds=30)
    path = f"{api}/v1/agents/{AGENT}"
    wait_until(lambda: httpx.get(path).status_code == 200, seconds=30, what="the agent at the API")
    for first in range(0, MEMORIES, BATCH):
        memories = [{"user_id": "ada", "content": text, "type": "note"} for text in texts()[first : first + BATCH]]
        httpx.post(f"{path}/memories/batch", json={"memories": memories}, timeout=120).raise_for_status()


def texts() -> list[str]:
    """Return the texts of the memories."""
    return [f"{WORDS[number % len(WORDS)]} {number}" for number in range(MEMORIES)]


def run_commands(plane: ControlPlane, workspace: Workspace, api: str) -> str:
    """Run the commands under load; return their output, and a summary of the clients' requests."""
    path = os.pathsep.join([str(plane.assets), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"KUBECONFIG": str(kubeconfig_of(plane)), "PATH": path, "KUBERC": "off"}
    environment |= {"PYTHONUNBUFFERED": "1", "COLUMNS": COLUMNS, "AGENTMEMORY_URL": api}
    with Witness([api], AGENT, sends_vectors=False, pace_s=0.05) as witness:
        output = [run_command(command, environment) for command in COMMANDS]
    journal = witness.journal
    witness.check(
        workspace.qdrant_url,
        workspace.alias,
        vector_of=lambda text: [float(x) for x in vector_of(text, "one")],
        besides=texts(),
    )
    answers = ", ".join(f"{status}: {count:,}" for status, count in sorted(journal.statuses.items()))
    output.append(
        f"# Clients meanwhile: {journal.acknowledged:,} memories stored, none lost, none back from the dead;"
        f" answers {answers}\n"
    )
    return "".join(output)


if __name__ == "__main__":
    main()

"""Write held-plan.txt: output of the commands in docs/approve.md for a withheld plan, on a real API server.

`KUBEBUILDER_ASSETS="$(make -s tools)" .venv/bin/python -m docs.captures.held_plan`
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import start_operator
from tests.support.cluster.workspace import CONNECTION, Workspace
from tests.support.pages import read_commands
from tests.support.programs import ROOT, running, start_qdrant

NAMESPACE, NAME, HEADING = "agents", "support-bot", "What you see"
CAPTURE = Path(__file__).with_name("held-plan.txt")
COLUMNS = "120"


def main() -> None:
    """Create a withheld plan and record the output of the page's commands."""
    with (
        tempfile.TemporaryDirectory() as name,
        ControlPlane(Path(os.environ["KUBEBUILDER_ASSETS"])) as plane,
        running((started := start_qdrant(Path(name)))[0]),
    ):
        plane.apply_crds(ROOT / "crds")
        plane.http.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}).raise_for_status()
        with running(start_operator(plane, Path(name))):
            manifest = create_plan(Workspace(plane, NAMESPACE, started[1], claims=NAME), Path(name))
            output = [
                run_command(plane, command, manifest.parent, started[1])
                for command in read_commands("approve.md", HEADING)
            ]
            CAPTURE.write_text("".join(output))
    print(CAPTURE.read_text())


def create_plan(workspace: Workspace, folder: Path) -> Path:
    """Create an agent with memories, and change its index, which needs approval; return the path of its manifest."""
    workspace.connect()
    workspace.create(NAME)
    workspace.wait_ready(NAME, seconds=30)
    workspace.store_points(3)
    workspace.patch(NAME, index={"distance": "Dot", "hnsw": {"m": 24}})
    workspace.wait_condition("InSync", "False/AwaitingApproval", name=NAME, seconds=30)
    found = workspace.must_get(NAME)
    kept = {key: found[key] for key in ("apiVersion", "kind", "spec")}
    path = folder / "support-bot.yaml"
    path.write_text(yaml.safe_dump(kept | {"metadata": {"name": NAME, "namespace": NAMESPACE}}))
    assert found["spec"]["connectionRef"]["name"] == CONNECTION
    return path


def run_command(plane: ControlPlane, command: str, folder: Path, qdrant_url: str) -> str:
    """Run a command; return it with its output."""
    path = os.pathsep.join([str(plane.assets), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"KUBECONFIG": str(plane.kubeconfig), "PATH": path, "KUBERC": "off", "COLUMNS": COLUMNS}
    environment["QDRANT_URL"] = qdrant_url
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, cwd=folder, timeout=60)
    return f"$ {command}\n{done.stdout}{done.stderr}\n"


if __name__ == "__main__":
    main()

"""Write install.txt: from the chart to the first answer, by the commands of docs/install.md and examples/quickstart.

`KUBEBUILDER_ASSETS="$(make -s tools)" .venv/bin/python -m docs.captures.install`
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from docs.captures.disaster import COLUMNS, NAMESPACE, run_command
from tests.controlplane.build import CHARTS
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import API_NAMESPACE_FLAGS, OPERATOR_NAMESPACE_FLAGS, Container
from tests.support.cluster.installation import NAMESPACE as SYSTEM
from tests.support.cluster.operators import LEADING, SERVING
from tests.support.pages import read_commands
from tests.support.programs import ROOT, find_built, running, start_qdrant

AGENT, USER = "support-bot", "maya.okonkwo"
CAPTURE = Path(__file__).with_name("install.txt")
HEAD = """\
# A real API server and no kubelet, so nothing starts pods: the commands of the release's two Deployments run as
# processes, with their arguments, variables and ServiceAccounts. AGENTMEMORY_URL stands for the Service.

"""
DECLARE = (
    "# Qdrant is here:",
    "sed -i s,http://qdrant.qdrant.svc:6333,$QDRANT_URL, examples/quickstart/10-connection.yaml",
    "kubectl apply -f examples/quickstart/",
    f"kubectl -n {NAMESPACE} wait --for=condition=Ready --timeout 60s amem/{AGENT}",
    "kubectl get qconn,amem --all-namespaces",
    f"kubectl -n {NAMESPACE} create serviceaccount {AGENT}",
)
TOKEN = f"kubectl -n {NAMESPACE} create token {AGENT} --audience agentmemory"
ASK = (
    f'agentmemory remember {AGENT} "Ledgerline 5.0.3 is in production at Brightwater." --user {USER} --type fact',
    f'agentmemory remember {AGENT} "Brightwater wants invoices in English." --user {USER} --type fact',
    f'agentmemory search {AGENT} "Which version runs in production?" --user {USER}',
    f"kubectl -n {NAMESPACE} get amem -o wide",
)


def main() -> None:
    """Run the commands and record their output."""
    with tempfile.TemporaryDirectory() as name, ControlPlane(Path(os.environ["KUBEBUILDER_ASSETS"])) as plane:
        folder = Path(name)
        subprocess.run(["cp", "-r", "--parents", "charts", "examples/quickstart", name], cwd=ROOT, check=True)
        with running((started := start_qdrant(folder / "qdrant"))[0]):
            CAPTURE.write_text(HEAD + "".join(run_commands(plane, folder, started[1])))
    print(CAPTURE.read_text())


def run_commands(plane: ControlPlane, folder: Path, qdrant: str) -> Iterator[str]:
    """Yield each command with its output."""
    programs = [str(plane.assets), str(find_built(CHARTS)), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {"KUBECONFIG": str(plane.kubeconfig), "PATH": os.pathsep.join(programs), "KUBERC": "off"}
    environment |= {"COLUMNS": COLUMNS, "QDRANT_URL": qdrant, "HOME": str(folder)}
    install, *_ = read_commands("install.md", "Install with Helm")
    yield run_command(install, environment, folder)
    with running_pods(plane, folder) as environment["AGENTMEMORY_URL"]:
        for command in DECLARE:
            yield run_command(command, environment, folder)
        done = subprocess.run(TOKEN, shell=True, check=True, capture_output=True, text=True, env=environment)
        environment["AGENTMEMORY_TOKEN"] = done.stdout.strip()
        yield f"$ export AGENTMEMORY_TOKEN=$({TOKEN})\n\n"
        for command in ASK:
            yield run_command(command, environment, folder)


@contextmanager
def running_pods(plane: ControlPlane, folder: Path) -> Iterator[str]:
    """Run the commands of the release's Deployments as processes; yield the URL of the API."""
    path = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/agentmemory-"
    operator, api = (Container(plane.http.get(path + name).raise_for_status().json()) for name in ("operator", "api"))
    ports = operator.free_ports() | api.free_ports()
    with (
        running(operator.start(plane, folder, *OPERATOR_NAMESPACE_FLAGS, ports=ports)) as operating,
        running(api.start(plane, folder, *API_NAMESPACE_FLAGS, ports=ports)) as serving,
    ):
        operating.wait_for(LEADING)
        serving.wait_for(SERVING)
        yield f"http://127.0.0.1:{ports[8080]}"


if __name__ == "__main__":
    main()

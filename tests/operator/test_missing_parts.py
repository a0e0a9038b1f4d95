"""Missing CRDs, missing rights and an unreachable API server: each is reported with its remedy."""

import contextlib
import pathlib
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import httpx
import pytest
import yaml
from kubernetes.aio import client, config

from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.entrypoints.operator import operator_tasks
from agentmemory_operator.entrypoints.operator.operator_tasks import Startup, list_all_objects
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.runtime.feed import OperatorFeed
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import run_command as run
from tests.support.cluster.tenants import KUBERNETES, Account
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, find_built, free_port, running

CRDS = "apply the CRDs (agentmemory crds | kubectl apply --server-side -f -)"
RIGHT = "this account lacks that permission: docs/install.md"


@pytest.fixture(scope="module")
def bare() -> Iterator[ControlPlane]:
    """API server without our CRDs."""
    with ControlPlane(find_built()) as started:
        yield started


def powerless(control_plane: ControlPlane, folder: pathlib.Path) -> pathlib.Path:
    """Write the kubeconfig of an account without rights."""
    account = Account.create(control_plane, control_plane.create_namespace(), "powerless")
    return kubeconfig_with(control_plane, folder, token=account.token(KUBERNETES))


def kubeconfig_with(
    control_plane: ControlPlane, folder: pathlib.Path, *, token: str | None = None, server: str | None = None
) -> pathlib.Path:
    """Write the admin's kubeconfig with another token or server."""
    content = yaml.safe_load(control_plane.kubeconfig.read_text())
    if token:
        content["users"][0]["user"] = {"token": token}
    if server:
        content["clusters"][0]["cluster"]["server"] = server
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path


VERBS = [
    ("status", "bot"),
    ("snapshot", "create", "bot"),
    ("snapshot", "list", "bot"),
    ("orphans",),
    ("takeover", "bot"),
    ("cleanup", "bot", "--dry-run"),
    ("approve", "bot"),
    ("plan", "-f", "examples/quickstart/20-support-bot.yaml", "--context", "admin"),
]


def context_of(control_plane: ControlPlane) -> str:
    return str(yaml.safe_load(control_plane.kubeconfig.read_text())["current-context"])


def error_of(control_plane: ControlPlane, verb: tuple[str, ...], kubeconfig: pathlib.Path) -> str:
    """Return the single error line of a verb."""
    named = [context_of(control_plane) if word == "admin" else word for word in verb]
    status, output, error = run(control_plane, *named, kubeconfig=kubeconfig)
    assert (status, output) == (1, "")
    assert error.count("\n") == 1, error
    return error


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_verb_names_missing_crds(bare: ControlPlane, verb: tuple[str, ...]) -> None:
    assert CRDS in error_of(bare, verb, bare.kubeconfig)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_verb_names_missing_right(control_plane: ControlPlane, tmp_path: pathlib.Path, verb: tuple[str, ...]) -> None:
    error = error_of(control_plane, verb, powerless(control_plane, tmp_path))

    assert re.search(r'cannot (get|list) resource "\w+"', error), error
    assert RIGHT in error


def test_rejected_credentials_are_reported(control_plane: ControlPlane, tmp_path: pathlib.Path) -> None:
    error = error_of(control_plane, ("status", "bot"), kubeconfig_with(control_plane, tmp_path, token="wrong"))

    assert "the credentials were rejected: log in again" in error


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_verb_names_unreachable_api_server(
    control_plane: ControlPlane, tmp_path: pathlib.Path, verb: tuple[str, ...]
) -> None:
    server = f"https://127.0.0.1:{free_port()}"

    error = error_of(control_plane, verb, kubeconfig_with(control_plane, tmp_path, server=server))

    assert f"Kubernetes cannot be reached at {server}: connection refused" in error


@pytest.mark.parametrize("missing", ["CRDs", "rights"])
async def test_start_fails_with_the_missing_part(
    bare: ControlPlane,
    control_plane: ControlPlane,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
) -> None:
    """Runs the operator's own start with a shorter deadline."""
    monkeypatch.setattr(operator_tasks, "LIST_RETRY_S", 0.01)
    path, words = (bare.kubeconfig, CRDS) if missing == "CRDs" else (powerless(control_plane, tmp_path), RIGHT)
    configuration = client.Configuration()
    await config.load_kube_config(config_file=str(path), client_configuration=configuration)
    cluster = KubernetesCluster(configuration)
    startup = Startup(0.2)

    with pytest.raises(AgentMemoryError, match=r"gave up after .* cannot list QdrantConnection") as caught:
        await list_all_objects(cast(OperatorFeed, cast(Any, None)), cluster, startup)

    await cluster.close()
    assert words in str(caught.value)
    assert words in (startup.find_obstacle() or "")


def test_servers_become_ready_once_crds_are_installed(bare: ControlPlane, tmp_path: pathlib.Path) -> None:
    """Before, each server is alive but not ready, and its log names the missing CRDs.

    This test is the last of the file, because it installs the CRDs in `bare`.
    """
    ports = {"operator": free_port(), "api": free_port()}
    options = {"operator": "--health-port", "api": "--port"}
    with contextlib.ExitStack() as stack:
        for verb, port in ports.items():
            command = (*AGENTMEMORY, verb, options[verb], str(port))
            program = Program(tmp_path / f"{verb}.log", *command, KUBECONFIG=str(bare.kubeconfig))
            stack.enter_context(running(program)).wait_for(re.escape(CRDS))
            url = f"http://127.0.0.1:{port}"
            wait_until(partial(answers, url), seconds=20, what="the probe")
            alive, ready = httpx.get(f"{url}/healthz"), httpx.get(f"{url}/readyz")
            assert (alive.status_code, ready.status_code) == (200, 503)
            assert (CRDS if verb == "operator" else "see the log") in ready.text

        bare.apply_crds(pathlib.Path("crds"))

        for verb, port in ports.items():
            ready_url = f"http://127.0.0.1:{port}/readyz"
            wait_until(lambda url=ready_url: httpx.get(url).status_code == 200, seconds=30, what=f"{verb} ready")


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").is_success
    except httpx.HTTPError:
        return False

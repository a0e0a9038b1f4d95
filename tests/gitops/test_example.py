"""The worked example: its paths exist, and its pipelines run."""

import re
import shlex
import subprocess
from typing import Any

import pytest
import yaml

from tests.gitops.tools import EXAMPLE
from tests.support.forked import run_agentmemory
from tests.support.programs import ROOT, clean_environment, find_built
from tests.support.spec.documents import Document

PIPELINES = sorted((EXAMPLE / "pipelines").glob("*.yaml"))
WAVE = "argocd.argoproj.io/sync-wave"
of_each_pipeline = pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)


def kustomize(folder: str) -> list[Document]:
    """Return the objects that a folder renders to."""
    command = [find_built() / "kubectl", "kustomize", str(EXAMPLE / folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def texts(value: Any) -> list[str]:
    """Return every text in a document."""
    if isinstance(value, str):
        return [value]
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for child in children for text in texts(child)]


def scripts(path: Any) -> list[str]:
    """Return the scripts of a pipeline."""
    found = texts(yaml.safe_load(path.read_text()))
    return [text for text in found if re.search(r"agentmemory |\$IMAGE|\$status|^gh |^curl |^\{", text)]


def test_kustomize_renders_waves_in_order() -> None:
    found = {item["kind"]: int(item["metadata"]["annotations"][WAVE]) for item in kustomize(".")}
    restore = yaml.safe_load((EXAMPLE / "restores" / "undo-2026-03-04.yaml").read_text())
    last = int(restore["metadata"]["annotations"][WAVE])
    assert list(found) == ["Namespace", "AgentMemory", "QdrantConnection"]
    assert found["Namespace"] < found["QdrantConnection"] < found["AgentMemory"] < last


def test_referenced_paths_exist() -> None:
    flux = yaml.safe_load_all((EXAMPLE / "clusters" / "flux" / "kustomization.yaml").read_text())
    folders = [item["spec"]["path"] for item in flux if item["kind"] == "Kustomization"]
    assert [kustomize(folder) for folder in folders]
    operator, memories = yaml.safe_load_all((EXAMPLE / "clusters" / "argocd" / "application.yaml").read_text())
    assert (ROOT / operator["spec"]["source"]["path"] / "Chart.yaml").exists()
    assert (EXAMPLE / memories["spec"]["source"]["path"] / "kustomization.yaml").exists()
    assert int(operator["metadata"]["annotations"][WAVE]) < int(memories["metadata"]["annotations"][WAVE])
    assert "ignoreDifferences" not in {**operator["spec"], **memories["spec"]}


@of_each_pipeline
def test_pipeline_commands_exit_as_expected(path: Any) -> None:
    commands = re.findall(r"(?:agentmemory|\"\$IMAGE\") ((?:validate|plan)[^>|\n]*)", "\n".join(scripts(path)))
    ends = {}
    for command in commands:
        environment = clean_environment()
        done = run_agentmemory(*shlex.split(command), cwd=EXAMPLE, env=environment)
        ends[command.split()[0]] = done.returncode, bool(done.stdout)
    assert ends == {"validate": (0, True), "plan": (2, True)}


def test_pull_request_of_a_fork_gets_no_secret() -> None:
    workflow = yaml.safe_load(PIPELINES[0].read_text())
    # YAML 1.1 reads the key `on` as true.
    assert set(workflow[True]) == {"pull_request"}
    [comment] = [step for step in workflow["jobs"]["plan"]["steps"] if step.get("name") == "Comment"]
    assert comment["if"] == "github.event.pull_request.head.repo.full_name == github.repository"


def test_validate_accepts_the_example() -> None:
    folders = [option for name in ("connections", "agents", "restores") for option in ("-f", str(EXAMPLE / name))]
    done = run_agentmemory("validate", *folders, env=clean_environment())
    assert (done.returncode, "3 objects checked" in done.stdout) == (0, True), done.stdout

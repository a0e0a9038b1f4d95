"""GitOps tools applied to an object: Argo CD's Lua, Flux's expressions, kstatus' rules."""

import functools
import json
import subprocess
from collections.abc import Sequence
from typing import Any

import yaml
from cel import compile as compile_cel

from tests.controlplane.build import LUA
from tests.support.programs import ROOT, find_built
from tests.support.spec.documents import Document

ARGO = ROOT / "gitops" / "argocd" / "agentmemory.dev"
EXAMPLE = ROOT / "examples" / "gitops"
FLUX = EXAMPLE / "clusters" / "flux" / "kustomization.yaml"


def run_lua(script: str, objects: Sequence[Document]) -> list[Document]:
    """Return the script's result for each object: `value`, or `error`."""
    flux_expressions = "".join(json.dumps({"script": script, "obj": found}) for found in objects)
    done = subprocess.run(
        [find_built(LUA) / "argolua"], input=flux_expressions, capture_output=True, text=True, check=True, timeout=120
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(objects)
    return answers


def healths(kind: str, objects: Sequence[Document]) -> list[Document]:
    """Return Argo CD's status and message of each object."""
    answers = run_lua((ARGO / kind / "health.lua").read_text(), objects)
    assert [answer for answer in answers if "error" in answer] == []
    return [answer["value"] for answer in answers]


def run_action(name: str, found: Document) -> Any:
    """Return the result of an action of an AgentMemory.

    Raises:
        ValueError: If the action refuses the object.
    """
    [answer] = run_lua((ARGO / "AgentMemory" / "actions" / name / "action.lua").read_text(), [found])
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer["value"]


def list_actions(found: Document) -> dict[str, bool]:
    """Return the actions of an AgentMemory, and whether each is enabled."""
    [answer] = run_lua((ARGO / "AgentMemory" / "actions" / "discovery.lua").read_text(), [found])
    return {name: not action["disabled"] for name, action in answer["value"].items()}


@functools.cache
def expressions() -> dict[str, Document]:
    """Return Flux's health expressions of the worked example, by kind."""
    documents = yaml.safe_load_all(FLUX.read_text())
    found = [entry for document in documents for entry in document["spec"].get("healthCheckExprs", ())]
    assert len({entry["kind"] for entry in found}) == len(found)
    return {entry["kind"]: entry for entry in found}


@functools.cache
def _compiled(expression: str) -> Any:
    return compile_cel(expression)


def flux_status(found: Document) -> str:
    """Return Flux's status of an object: the first true expression of inProgress, failed and current, else InProgress.

    An expression that cannot be evaluated makes Flux wait too.
    """
    status = found.get("status")
    observed = status.get("observedGeneration") if isinstance(status, dict) else None
    if observed is not None and observed != found["metadata"]["generation"]:
        return "InProgress"
    flux_expressions = expressions()[found["kind"]]
    for name, outcome in (("inProgress", "InProgress"), ("failed", "Failed"), ("current", "Current")):
        try:
            if name in flux_expressions and _compiled(flux_expressions[name]).execute(found) is True:
                return outcome
        except (KeyError, RuntimeError, TypeError, ValueError):
            return "InProgress"
    return "InProgress"


# The first match wins; "any" is the default. These are kstatus' rules for custom resources in our words: the library is
# written in Go and is not run here.
KSTATUS = (
    ("deleted", "Terminating"),
    ("generation behind", "InProgress"),
    ("Reconciling=True", "InProgress"),
    ("Stalled=True", "Failed"),
    ("Ready=True", "Current"),
    ("Ready=False", "InProgress"),
    ("Ready=Unknown", "InProgress"),
    ("any", "Current"),
)


def kstatus(found: Document) -> str:
    """Return kstatus' status of an object, by the table above."""
    metadata, status = found["metadata"], found.get("status") or {}
    facts = {f"{one['type']}={one['status']}" for one in status.get("conditions") or ()} | {"any"}
    if "deletionTimestamp" in metadata:
        facts.add("deleted")
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        facts.add("generation behind")
    return next(outcome for fact, outcome in KSTATUS if fact in facts)

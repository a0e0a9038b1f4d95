"""The tools of GitOps on an object: Argo CD's Lua, Flux's expressions, kstatus' rules."""

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
    """Return what the script comes to for each object: `value`, or `error`."""
    asked = "".join(json.dumps({"script": script, "obj": found}) for found in objects)
    done = subprocess.run(
        [find_built(LUA) / "argolua"], input=asked, capture_output=True, text=True, check=True, timeout=120
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(objects)
    return answers


def healths(kind: str, objects: Sequence[Document]) -> list[Document]:
    """Return status and message of each object, as Argo CD has them."""
    answers = run_lua((ARGO / kind / "health.lua").read_text(), objects)
    assert [answer for answer in answers if "error" in answer] == []
    return [answer["value"] for answer in answers]


def run_action(name: str, found: Document) -> Any:
    """Return what an action of an AgentMemory gives back.

    Raises:
        ValueError: it refuses.
    """
    [answer] = run_lua((ARGO / "AgentMemory" / "actions" / name / "action.lua").read_text(), [found])
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer["value"]


def offered(found: Document) -> dict[str, bool]:
    """Return the actions of an AgentMemory, and whether Argo CD lets one click them."""
    [answer] = run_lua((ARGO / "AgentMemory" / "actions" / "discovery.lua").read_text(), [found])
    return {name: not action["disabled"] for name, action in answer["value"].items()}


@functools.cache
def expressions() -> dict[str, Document]:
    """Return by kind what the worked example asks Flux to evaluate."""
    documents = yaml.safe_load_all(FLUX.read_text())
    found = [entry for document in documents for entry in document["spec"].get("healthCheckExprs", ())]
    assert len({entry["kind"] for entry in found}) == len(found)
    return {entry["kind"]: entry for entry in found}


@functools.cache
def _compiled(expression: str) -> Any:
    return compile_cel(expression)


def flux_status(found: Document) -> str:
    """Return what Flux makes of an object: inProgress, failed, current, the first that is true; else it waits.

    An expression that cannot be evaluated makes Flux wait too.
    """
    status = found.get("status")
    observed = status.get("observedGeneration") if isinstance(status, dict) else None
    if observed is not None and observed != found["metadata"]["generation"]:
        return "InProgress"
    asked = expressions()[found["kind"]]
    for name, outcome in (("inProgress", "InProgress"), ("failed", "Failed"), ("current", "Current")):
        try:
            if name in asked and _compiled(asked[name]).execute(found) is True:
                return outcome
        except (KeyError, RuntimeError, TypeError, ValueError):
            return "InProgress"
    return "InProgress"


# The first that holds; "any" is what is left. So are custom resources looked at by kstatus, in our words: the library
# itself is Go and is not run here.
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
    """Return what kstatus makes of an object, by the table above."""
    metadata, status = found["metadata"], found.get("status") or {}
    facts = {f"{one['type']}={one['status']}" for one in status.get("conditions") or ()} | {"any"}
    if "deletionTimestamp" in metadata:
        facts.add("deleted")
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        facts.add("generation behind")
    return next(outcome for fact, outcome in KSTATUS if fact in facts)

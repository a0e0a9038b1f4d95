"""Imports of each verb: vendor packages take a second to import and are for servers only."""

import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from importlib.util import find_spec

import pytest

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.main.processes import open_tracer
from agentmemory_operator.settings import Settings

OURS = ("agentmemory_operator.runtime", "agentmemory_operator.spec")
VENDORS = ("aiohttp", "cel", "fastapi", "kopf", "kubernetes", "numpy", "openai", "uvicorn", "wordllama")
HEAVY = (*OURS, *VENDORS, "qdrant_client")
PROBE = f"""
import json, sys
from agentmemory_operator.main import run
found = {{}}
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        run()
    except SystemExit:
        pass
    found[" ".join(arguments)] = [name for name in {HEAVY!r} if name in sys.modules]
print()
print(json.dumps(found))
"""


def imported_by(*verbs: list[str]) -> dict[str, list[str]]:
    """Return the heavy packages imported after each verb; one process runs the verbs in turn."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(verbs)], capture_output=True, text=True, check=True, timeout=60
    )
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_verb_imports_only_the_packages_it_needs() -> None:
    prints = [["version"], ["--help"], ["completion", "bash"]]
    kinds = [["schema"], ["crds"]]
    found = imported_by(*prints, *kinds, ["validate", "-f", "examples/quickstart"])

    ours = list(OURS)
    assert {name: found.pop(name) for name in list(map(" ".join, prints))} == {" ".join(verb): [] for verb in prints}
    assert found == {"schema": ours, "crds": ours, "validate -f examples/quickstart": [*ours, "cel"]}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("agentmemory s", ["status", "search", "snapshot", "schema"]), ("agentmemory orphans --q", ["--qdrant"])],
)
def test_completion_imports_no_verb(typed: str, expected: list[str]) -> None:
    count = str(len(typed.split()) - 1)
    variables = {"_AGENTMEMORY_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": count}
    lines = (
        "import atexit, sys, agentmemory_operator.main as main",
        "atexit.register(lambda: print('agentmemory_operator.spec' in sys.modules))",
        "main.run()",
    )
    done = subprocess.run(
        [sys.executable, "-c", "; ".join(lines)], capture_output=True, text=True, timeout=60, env=os.environ | variables
    )

    assert done.stdout.split() == [*expected, "False"], done.stderr


def test_operator_imports_qdrant_client_only_before_leading() -> None:
    lines = """
import asyncio, sys, agentmemory_operator.entrypoints.operator.handlers
from agentmemory_operator.main import operator
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
spec = {'connectionRef': {'name': 'main'}, 'embedding': {'provider': 'none', 'dimensions': 8}}
head = {'apiVersion': 'agentmemory.dev/v1alpha1', 'kind': 'AgentMemory', 'metadata': {'name': 'a'}}
parse_agent_memory(head | {'spec': spec})
unused = {'numpy', 'prompt_toolkit', 'openai', 'cryptography', 'qdrant_client'}
print('kopf' in sys.modules, *(unused & set(sys.modules)))
from kubernetes.aio import client
from agentmemory_operator.settings import Settings
async def configured(_): return client.Configuration(host="http://127.0.0.1:1")
async def operate(*_, **__):
    is_there = "qdrant_client" in sys.modules, "onnxruntime" not in sys.modules
    import fastembed
    print(*is_there)
operator.load_configuration, operator.operate = configured, operate
asyncio.run(operator.run_operator(Settings(), operator.OperatorOptions()))
"""
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["True", "True", "True"], done.stderr


def test_api_imports_no_operator_or_folder_package() -> None:
    ours = ("adapters.folder", "controllers.agent_memory_pass", "entrypoints.operator.operator_tasks")
    ours += ("rebuilds.controller",)
    ours += ("restores", "snapshots", "lifecycle.cleanup")
    vendors = ("cel", "cryptography", "jwt", "kopf", "numpy", "openai", "opentelemetry.sdk", "qdrant_client")
    vendors += ("rich", "tokenizers")
    own = {f"agentmemory_operator.{name}" for name in ours}
    assert [name for name in own if find_spec(name) is None] == []
    heavy = own | {*vendors, "wordllama"}
    line = (
        f"import sys, agentmemory_operator.main.api; print('fastapi' in sys.modules, *({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True"], done.stderr


def test_missing_trace_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "agentmemory_operator.adapters.otlp_tracer", raising=False)
    settings = Settings.from_env({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})

    with pytest.raises(AgentMemoryError, match=r"agentmemory-operator\[otlp\]"):
        open_tracer(settings, AsyncExitStack(), service="agentmemory-api")

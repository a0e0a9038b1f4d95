"""A verb imports what it needs: a second of vendor packages is for servers only."""

import subprocess
import sys

import pytest

HEAVY = ("aiohttp", "cel", "fastapi", "kopf", "kubernetes", "numpy", "openai", "uvicorn", "wordllama")
PROBE = f"""
import sys
from agentmemory_operator.main import run
try:
    run()
except SystemExit:
    pass
print("IMPORTED", *(name for name in {HEAVY!r} if name in sys.modules))
"""


def imported_by(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["schema"], ["crds"], ["completion", "bash"]])
def test_a_verb_that_prints_imports_no_vendor_package(arguments: list[str]) -> None:
    assert imported_by(*arguments) == set()


def test_validate_imports_the_rules_language_and_no_client() -> None:
    assert imported_by("validate", "-f", "examples/quickstart") == {"cel"}


def test_the_operator_imports_nothing_that_counts_vectors_or_draws_on_a_terminal() -> None:
    lines = (
        "import sys, agentmemory_operator.main.operator, agentmemory_operator.entrypoints.handlers",
        "from agentmemory_operator.domain.manifests import parse_agent_memory",
        "spec = {'connectionRef': {'name': 'main'}, 'embedding': {'provider': 'none', 'dimensions': 8}}",
        "head = {'apiVersion': 'agentmemory.dev/v1alpha1', 'kind': 'AgentMemory', 'metadata': {'name': 'a'}}",
        "parse_agent_memory(head | {'spec': spec})",
        "print('kopf' in sys.modules, *({'numpy', 'prompt_toolkit', 'openai'} & set(sys.modules)))",
    )
    done = subprocess.run([sys.executable, "-c", "; ".join(lines)], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True"], done.stderr

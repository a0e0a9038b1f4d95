"""Commands in the documentation: lines after `$ ` in console blocks."""

import ast
import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping

import yaml

from tests.support.cluster.workspace import Workspace
from tests.support.forked import run_agentmemory
from tests.support.programs import clean_environment
from tests.support.source_trees import nodes_of

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
COMMANDS = DOCS.parent / "tests" / "golden" / "commands.yaml"
# Commands that contain it need Deployments and this namespace. If the operator is a process, neither exists.
NEEDS_PODS = "agentmemory-system"
SHELL_CHARACTERS = re.compile(r"[|<>;&$`*~\n]")


def run_command(
    said: str, *, env: Mapping[str, str], cwd: pathlib.Path, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a command as in a shell. A plain `agentmemory` command is forked, which saves the start of an interpreter."""
    words = [] if SHELL_CHARACTERS.search(said) else shlex.split(said)
    if words[:1] == ["agentmemory"]:
        return run_agentmemory(*words[1:], env=env, cwd=cwd, timeout=timeout)
    return subprocess.run(said, shell=True, capture_output=True, text=True, env=env, cwd=cwd, timeout=timeout)


def read_commands(page: str, heading: str = "") -> list[str]:
    """Return the commands of a page, or of the section under a heading, without comments."""
    text = (DOCS / page).read_text()
    if heading:
        text = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [re.sub(r"\s+# .*", "", line[2:]) for line in lines]


def read_commands_by_heading(page: str) -> dict[str, list[str]]:
    """Return the commands of a page of the repository by heading, with continuation lines and without comments."""
    found: dict[str, list[str]] = {}
    heading, open_fence = "", ""
    for line in (DOCS.parent / page).read_text().splitlines():
        fence = re.match(r"```(\w*)", line)
        if fence:
            open_fence = "" if open_fence else fence[1] or "text"
        elif not open_fence and (title := re.match(r"#+ (.+)", line)):
            heading = title[1]
        elif open_fence == "console" and line.startswith("$ "):
            found.setdefault(heading, []).append(re.sub(r"\s+# .*", "", line[2:]))
        elif open_fence == "console" and found.get(heading) and _goes_on(found[heading][-1]):
            found[heading][-1] += f"\n{line}"
    return found


def _goes_on(command: str) -> bool:
    return command.endswith("\\") or command.count("'") % 2 == 1


def commands_to_run(how: str) -> dict[str, list[str]]:
    """Return the commands of each page to run in the mode `how`, in order, without the excluded ones."""
    told = yaml.safe_load(COMMANDS.read_text())
    return {
        page: [
            command
            for heading, commands in read_commands_by_heading(page).items()
            if headings.get(heading) == how
            for command in commands
            if not command.startswith(tuple(told["except"]))
        ]
        for page, headings in told["pages"].items()
        if how in headings.values()
    }


def write_manifests(workspace: Workspace, page: str, heading: str, *, folder: pathlib.Path, **values: str) -> None:
    """Write the manifests of a page, changed for the test's objects. The first line of each contains its file name."""
    for name, manifest in read_manifests(f"docs/{page}", heading).items():
        said = manifest.replace("namespace: agents", f"namespace: {workspace.namespace}").replace(
            "support-bot", "memory"
        )
        for word, value in values.items():
            said = said.replace(word, value)
        (folder / name).write_text(said)


def read_manifests(page: str, heading: str = "") -> dict[str, str]:
    """Return the manifests of a page of the repository, or of a section, by the file name in their first line."""
    text = (DOCS.parent / page).read_text()
    if heading:
        text = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", text, re.M | re.S))


def run_page(workspace: Workspace, page: str, heading: str, *, folder: pathlib.Path, **values: str) -> list[str]:
    """Run the commands of a page on the test's object; return the output of each."""
    path = os.pathsep.join(
        [str(workspace.control_plane.assets), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
    )
    environment = clean_environment() | {
        "KUBECONFIG": str(workspace.control_plane.kubeconfig),
        "PATH": path,
        "KUBERC": "off",
    }
    printed = []
    for command in read_commands(page, heading):
        if NEEDS_PODS in command:
            continue
        said = command.replace("-n agents", f"-n {workspace.namespace}").replace("support-bot", "memory")
        # The connections of other tests in this cluster are unreachable, and the command would contact them all.
        said = said.replace("agentmemory orphans", f"agentmemory orphans --qdrant {workspace.qdrant_url}")
        for word, value in values.items():
            said = said.replace(word, value)
        done = run_command(said, env=environment, cwd=folder, timeout=60)
        assert done.returncode == 0, f"{said}: {done.stdout}{done.stderr}"
        printed.append(done.stdout)
    assert printed, f"{page} shows no command under {heading!r}"
    return printed


@functools.cache
def read_test_names(path: str) -> frozenset[str]:
    """Return the names of all tests in a file."""
    nodes = nodes_of(DOCS.parent / path)
    found = (node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in found if name.startswith("test_"))

"""Scripts of the documentation site, in node: what a copy button copies, and how the search orders its results."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from docs.site.links import ROOT

SITE = ROOT / "docs" / "site"
TERMINAL = """\
$ kubectl get amem \\
    -n agents
NAME   READY
$ cat <<'END' | kubectl apply -f -
kind: AgentMemory
END
agentmemory/support-bot created
"""


def evaluate(script: str, *arguments: object) -> Any:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    done = subprocess.run(
        ["node", "-e", script, *map(json.dumps, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def copied(text: str, *, is_terminal: bool) -> Any:
    script = f"const {{ copied }} = require({json.dumps(str(SITE / 'theme' / 'copy.js'))});"
    return evaluate(
        script
        + "const [text, is] = process.argv.slice(1).map(JSON.parse); console.log(JSON.stringify(copied(text, is)));",
        text,
        is_terminal,
    )


def score(page: str, points: int, *, title: str = "title", asked: str = "") -> Any:
    text = (SITE / "search.js").read_text() + f"globalThis.location = {{search: {json.dumps(f'?q={asked}')}}};"
    result = [page, title, "", None, points, f"{page}.md", "text"]
    return evaluate(text + "console.log(JSON.stringify(Scorer.score(JSON.parse(process.argv[1]))));", result)


def test_commands_are_copied_without_prompt_and_output() -> None:
    expected = "kubectl get amem \\\n    -n agents\ncat <<'END' | kubectl apply -f -\nkind: AgentMemory\nEND"

    assert copied(TERMINAL, is_terminal=True) == expected


def test_other_code_is_copied_whole() -> None:
    assert copied("spec:\n  preset: standard\n", is_terminal=False) == "spec:\n  preset: standard"
    assert copied("plain text\n", is_terminal=True) == "plain text"


def test_decisions_and_changelog_come_last() -> None:
    others = [score(page, 200) for page in ("adr/0001", "repository/CHANGELOG", "files/docs/captures/rebuild.txt")]

    assert max(others) < score("snapshots", 2) < score("snapshots", 60)


def test_words_in_short_titles_count_most() -> None:
    titles = ("Presets", "Approve a preset of another team", "Approve a held plan", "Approve > preset")
    found = [score("page", 60, title=title, asked="preset") for title in titles]

    assert found[0] > found[1] > found[2] == found[3]

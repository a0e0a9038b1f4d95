"""docs/cli.md: an example for every verb, and only valid examples."""

import re
import shlex
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.controllers.inspection import preview_passes
from agentmemory_operator.entrypoints.cli.look.plan import plan_sections
from agentmemory_operator.entrypoints.cli.tables import plain
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.command_line import command_line
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.pages import DOCS, commands_to_run, read_commands
from tests.support.spec.documents import memory_document

ROOT = DOCS.parent
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
COMMANDS = [command for page in PAGES for command in read_commands(page) if command.startswith("agentmemory ")]
VERBS: dict[str, Any] = get_command(command_line()).commands  # type: ignore[attr-defined]
# Exit status of the verbs that need neither server nor cluster; their examples are run.
OFFLINE = {"validate": 0, "crds": 0, "schema": 0, "completion": 0, "version": 0, "preset": 0}
DIGEST = r"\b[0-9a-f]{12}\b"


def test_examples_use_existing_verbs_and_options() -> None:
    for command in COMMANDS:
        _, verb, *arguments = shlex.split(command)
        taken = VERBS[verb]
        if hasattr(taken, "commands"):
            taken = taken.commands[arguments[0]]

        options = {option for parameter in taken.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word.partition("=")[0] for word in arguments if word.startswith("-")} <= options, command


@pytest.mark.parametrize("command", commands_to_run("offline")["docs/cli.md"])
def test_offline_example_works(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, verb, *arguments = shlex.split(command)

    done = CliRunner().invoke(command_line(), [verb, *arguments])

    assert done.exit_code == OFFLINE[verb], done.output


async def test_plan_on_the_page_is_the_printed_one() -> None:
    spec: dict[str, Any] = {"connectionRef": {"name": "main"}, "embedding": {"provider": "openai"}}
    document = memory_document("support-bot", **spec)
    live = desired_collection(parse_agent_memory(document), cluster_id="cluster-1")
    alias, physical = "agent_memory_support-bot", "agent_memory_support-bot__1"
    store = FakeCollectionStore(collections={physical: live}, aliases={alias: physical}, points={physical: 48210})
    store.lengths[physical] = [180] * 256
    changed = {
        "embedding": {"provider": "openai", "model": "text-embedding-3-large"},
        "index": {"hnsw": {"m": 24}},
        "rebuild": {"embeddingPricePerMillionTokens": 0.13},
    }
    wanted = parse_agent_memory(memory_document("support-bot", **(spec | changed)))

    previews = [preview async for preview in preview_passes([wanted], store)]
    shown = plain(plan_sections(previews, "the Qdrant at http://127.0.0.1:6333"))

    page = (DOCS / "cli.md").read_text().split("```text\n")[1].split("```")[0]
    assert re.sub(DIGEST, "", page) == re.sub(DIGEST, "", shown)


# Options of other programs on the page.
FOREIGN = {"--manifest", "--audience"}


def options_of(command: Any) -> set[str]:
    own = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return own.union({"-h", "--help"}, *(options_of(below) for below in getattr(command, "commands", {}).values()))


def test_every_named_option_exists() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", (DOCS / "cli.md").read_text()))
    known = set().union(*map(options_of, VERBS.values()))

    assert named - FOREIGN <= known
    assert len(named & known) > 30


@pytest.mark.parametrize("columns", ["40"])
@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_breaks_no_word(verb: str, columns: str) -> None:
    done = CliRunner().invoke(command_line(), [verb, "--help"], env={"COLUMNS": columns})

    texts = [VERBS[verb].help or ""] + [getattr(parameter, "help", None) or "" for parameter in VERBS[verb].params]
    texts += [below.help for below in getattr(VERBS[verb], "commands", {}).values()]
    shown = " ".join(done.output.split())
    assert [text for text in texts if " ".join(text.split()) not in shown] == []
    assert "<bool>" not in shown

"""`agentmemory search` and `remember` against the API."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from agentmemory_operator.entrypoints.cli.composition import ApiAccess, QdrantAccess
from agentmemory_operator.entrypoints.cli.memories.memory_commands import add_asking
from agentmemory_operator.errors import NotFound
from agentmemory_operator.main import open_client
from tests.support.web.api_stack import Stack


class ObjectsOfNamespaces:
    """Kubernetes objects for the commands: one AgentMemory `bot` of the agent `words`, in namespace `team`."""

    async def read_object(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        if (namespace, name) != ("team", "bot"):
            raise NotFound(f"{kind} {namespace}/{name} not found")
        return {"metadata": {"name": name}, "spec": {"agent": "words"}}


@contextlib.asynccontextmanager
async def open_cluster(context: str | None, _: Any) -> AsyncIterator[tuple[Any, str]]:
    yield ObjectsOfNamespaces(), "team" if context == "dev" else "default"


def run(stack: Stack, *arguments: str, url: str | None = None, typed: str | None = None) -> Result:
    def absent(*_: Any) -> Any:
        raise AssertionError("this command line has no server")

    cli = typer.Typer()
    inspection = QdrantAccess(absent, absent, open_cluster, None, None)
    add_asking(cli, ApiAccess(open_client, url or stack.api_url, None), inspection)
    return CliRunner().invoke(cli, list(arguments), input=typed)


def test_remembered_memory_is_found(stack: Stack, user: str) -> None:
    stored = run(stack, "remember", "words", "pays by invoice", "--user", user, "--type", "preference", "--tag", "x")
    found = run(stack, "search", "words", "how does she pay?", "--user", user, "--type", "preference", "--tag", "x")

    assert stored.output.startswith("ADD ")
    heading, columns, row = found.output.splitlines()
    assert heading == "1 of 1 memories, by generation 3"
    assert columns.split() == ["ID", "SCORE", "TYPE", "CREATED", "CONTENT"]
    assert "pays by invoice" in row
    assert row.split()[0] == stored.output.split()[1]


@pytest.mark.parametrize(("given", "stored"), [("high", 0.75), ("0.9", 0.9), ("1", 1)])
def test_importance_is_a_level_or_a_number(stack: Stack, user: str, given: str, stored: float) -> None:
    run(stack, "remember", "words", "a fact", "--user", user, "--importance", given)
    found = json.loads(run(stack, "search", "words", "a fact", "--user", user, "-o", "json").output)

    assert [memory["importance"] for memory in found["results"]] == [stored]


def test_unknown_level_is_refused_with_known_ones(stack: Stack, user: str) -> None:
    refused = run(stack, "remember", "words", "a fact", "--user", user, "--importance", "hihg")

    assert refused.exit_code == 1
    assert "critical" in refused.output


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_output_option_prints_data(stack: Stack, user: str, output: str, load: Any) -> None:
    old = load(run(stack, "remember", "words", "first\ntext", "--user", user, "-o", output).output)
    new = load(
        run(stack, "remember", "words", "second", "--user", user, "--supersedes", old["id"], "-o", output).output
    )
    found = load(run(stack, "search", "words", "second", "--user", user, "-o", output).output)

    assert (old["event"], new["supersedes"]) == ("ADD", old["id"])
    assert [memory["content"] for memory in found["results"]] == ["second"]
    assert str(found["results"][0]["created_at"]).endswith("Z") or output == "yaml"
    assert found["generation"] == 3


def test_filters_are_json(stack: Stack, user: str) -> None:
    run(stack, "remember", "words", "a", "--user", user, "--importance", "0.9")
    run(stack, "remember", "words", "b", "--user", user, "--importance", "0.1")

    found = run(stack, "search", "words", "a", "--user", user, "--filters", '{"importance": {"lt": 0.5}}', "-o", "json")
    wrong = run(stack, "search", "words", "a", "--user", user, "--filters", "importance<0.5")

    assert [memory["content"] for memory in json.loads(found.output)["results"]] == ["b"]
    assert wrong.exit_code == 2
    assert "--filters is not JSON" in wrong.output


@pytest.mark.parametrize("where", [["-n", "team"], ["--context", "dev"], ["--context", "prod", "-n", "team"]])
def test_object_names_agent_in_namespace_or_context(stack: Stack, user: str, where: list[str]) -> None:
    assert run(stack, "remember", "bot", "a", "--user", user, *where).output.startswith("ADD ")


@pytest.mark.parametrize("option", ["--token", "--url", "--namespace", "--context"])
@pytest.mark.parametrize("verb", [["search", "words", "q"], ["forget", "words", "--everything", "--yes"]])
def test_empty_option_is_refused(stack: Stack, user: str, verb: list[str], option: str) -> None:
    """It may be an unset variable of a shell; the default would be another server or agent."""
    refused = run(stack, *verb, "--user", user, option, "")

    assert (refused.exit_code, f"{option} is empty" in refused.output) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "nobody", "q"], "404 Not found: there is no agent 'nobody'"),
        (["search", "bot", "q", "-n", "elsewhere"], "AgentMemory elsewhere/bot not found"),
        (["remember", "words", " "], "content: must not be blank"),
        (["search", "words", "q", "--url", "http://127.0.0.1:9"], "no answer from http://127.0.0.1:9"),
        (["search", "words", "q", "--url", "http://[::1"], "url: 'http://[::1': Invalid port"),
        (["search", "words", "q", "--url", "words"], "url: 'words' has no http:// or https:// before it"),
        (["search", "words", "q", "--token", "a\nb"], "token: must be printable ASCII text"),
    ],
)
def test_error_is_one_line(stack: Stack, user: str, arguments: list[str], message: str) -> None:
    done = run(stack, *arguments, "--user", user)

    assert done.exit_code == 1
    assert done.stderr.startswith("agentmemory: ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1

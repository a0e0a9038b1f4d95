"""`agentmemory search`, `remember`, `list`, `get`, `history` and `delete` against the API."""

import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from agentmemory_operator.entrypoints.cli import run as run_module
from agentmemory_operator.entrypoints.cli.composition import ApiAccess, QdrantAccess
from agentmemory_operator.entrypoints.cli.memories import stored_commands
from agentmemory_operator.entrypoints.cli.memories.memory_commands import add_memory_commands
from agentmemory_operator.entrypoints.cli.memories.stored_commands import add_stored
from agentmemory_operator.errors import NotFound
from agentmemory_operator.main import open_client
from tests.support.pages import read_commands_by_heading
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
    access = ApiAccess(open_client, url or stack.api_url, None)
    add_memory_commands(cli, access, inspection)
    add_stored(cli, access, inspection)
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


def test_per_session_shows_one_result_of_each(stack: Stack, user: str) -> None:
    turns = (("green tea", "s"), ("green tea, please", "s"), ("the weather is fine", "t"))
    memories = [{"user_id": user, "content": text, "session_id": session} for text, session in turns]
    httpx.post(f"{stack.api_url}/v1/agents/words/memories/batch", json={"memories": memories}).raise_for_status()
    options = (
        "search",
        "words",
        "green tea",
        "--user",
        user,
        "--threshold",
        "-1",
        "--top-k",
        "2",
        "--per-session",
        "1",
    )

    found = json.loads(run(stack, *options, "-o", "json").output)
    shown = run(stack, *options, "--explain").output

    assert [memory["session_id"] for memory in found["results"]] == ["s", "t"]
    assert shown.splitlines()[-1].strip() == "1 left out by --per-session"


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
    """An empty option may be an unset variable of a shell. Its default would be another server or agent."""
    refused = run(stack, *verb, "--user", user, option, "")

    assert (refused.exit_code, f"{option} is empty" in refused.output) == (2, True)


def remember(stack: Stack, user: str, text: str, *options: str) -> str:
    """Store a memory of agent `words`; return its id."""
    return str(json.loads(run(stack, "remember", "words", text, "--user", user, *options, "-o", "json").output)["id"])


def test_list_shows_newest_first_by_page(stack: Stack, user: str) -> None:
    first, second = remember(stack, user, "one\ntext"), remember(stack, user, "two", "--tag", "x")

    listed = run(stack, "list", "words", "--user", user).output.splitlines()
    page = run(stack, "list", "words", "--user", user, "--limit", "1").output.splitlines()
    rest = run(stack, "list", "words", "--user", user, *page[-1].partition("add ")[2].split(), "-o", "json")
    tagged = run(stack, "list", "words", "--user", user, "--tag", "x", "-o", "json")

    assert listed[0] == "2 memories, newest first"
    assert [line.split()[0] for line in listed[1:]] == ["ID", second, first]
    assert listed[-1].endswith("one text")
    assert (page[0], page[2].split()[0]) == ("1 memory, newest first", second)
    assert [memory["id"] for memory in json.loads(rest.output)["results"]] == [first]
    assert json.loads(rest.output)["next_cursor"] is None
    assert [memory["id"] for memory in json.loads(tagged.output)["results"]] == [second]


def test_list_of_a_user_without_memories_has_a_reason(stack: Stack, user: str) -> None:
    heading, reason = run(stack, "list", "words", "--user", user).output.splitlines()

    assert heading == "0 memories, newest first"
    assert "names of users are exact" in reason


def test_get_shows_fields_with_a_value(stack: Stack, user: str) -> None:
    id_ = remember(stack, user, "pays by invoice", "--tag", "x")

    shown = run(stack, "get", "words", id_, "--user", user).output
    data = json.loads(run(stack, "get", "words", id_, "--user", user, "-o", "json").output)

    assert shown.startswith(f"{id_} of {user}\n  content ")
    assert '["x"]' in shown
    assert "session_id" not in shown
    assert (data["id"], data["content"], data["session_id"]) == (id_, "pays by invoice", None)


def test_history_lists_versions(stack: Stack, user: str) -> None:
    old = remember(stack, user, "first")
    new = remember(stack, user, "second", "--supersedes", old)

    shown = run(stack, "history", "words", new, "--user", user).output.splitlines()
    data = json.loads(run(stack, "history", "words", old, "--user", user, "-o", "json").output)
    listed = json.loads(run(stack, "list", "words", "--user", user, "--superseded", "-o", "json").output)

    assert shown[0] == "2 versions, oldest first"
    assert [line.split()[0] for line in shown[1:]] == ["ID", old, new]
    assert (shown[2].split()[3] != "-", shown[3].split()[3]) == (True, "-")
    assert [memory["id"] for memory in data["results"]] == [old, new]
    assert {memory["id"] for memory in listed["results"]} == {old, new}


def test_delete_asks_and_reactivates_the_version_before(stack: Stack, user: str) -> None:
    old = remember(stack, user, "first")
    new = remember(stack, user, "second", "--supersedes", old)

    unasked = run(stack, "delete", "words", new, "--user", user)
    kept = json.loads(run(stack, "get", "words", new, "--user", user, "-o", "json").output)
    deleted = run(stack, "delete", "words", new, "--user", user, "--yes")
    listed = json.loads(run(stack, "list", "words", "--user", user, "-o", "json").output)

    assert (unasked.exit_code, "add --yes" in unasked.stderr) == (2, True)
    assert kept["content"] == "second"
    assert (deleted.exit_code, deleted.stdout) == (0, f"deleted {new}\n")
    assert [memory["id"] for memory in listed["results"]] == [old]


def test_commands_of_cli_page_work(stack: Stack, user: str) -> None:
    """Runs the commands of "list, get, history and delete" in cli.md on an agent and a memory of the test."""
    id_ = remember(stack, user, "pays by invoice")
    for command in read_commands_by_heading("docs/cli.md")["list, get, history and delete"]:
        own = {"support-bot": "words", "ada": user, "$ID": id_}
        done = run(stack, *(own.get(word, word) for word in command.split()[1:]))
        assert (done.exit_code, id_ in done.output) == (0, True), command


@pytest.mark.parametrize(("typed", "code", "left"), [("n\n", 1, 1), ("y\n", 0, 0)])
def test_delete_shows_the_memory_before_it_asks(
    stack: Stack, user: str, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, left: int
) -> None:
    monkeypatch.setattr(stored_commands, "check_answerable", lambda question, *, yes: None)
    monkeypatch.setattr(run_module, "check_answerable", lambda question, *, yes: None)
    id_ = remember(stack, user, "pays by invoice")

    done = run(stack, "delete", "words", id_, "--user", user, "-o", "json", typed=typed)

    listed = json.loads(run(stack, "list", "words", "--user", user, "-o", "json").output)
    assert (done.exit_code, len(listed["results"])) == (code, left)
    assert "pays by invoice" in done.stderr
    assert (id_ in done.stdout) is (code == 0)


@pytest.mark.parametrize("verb", [["get"], ["history"], ["delete", "--yes"]])
def test_unknown_id_is_an_error(stack: Stack, user: str, verb: list[str]) -> None:
    other = remember(stack, f"{user}-other", "a")

    for id_ in (other, "3f0a1c0e-0000-4000-8000-000000000000"):
        done = run(stack, verb[0], "words", id_, "--user", user, *verb[1:])
        assert (done.exit_code, done.stdout) == (1, "")
        assert "404" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert run(stack, "get", "words", other, "--user", f"{user}-other").exit_code == 0


def test_explanation_shows_the_times_of_the_query(stack: Stack, user: str) -> None:
    asked = ["search", "keywords", "What was there yesterday?", "--user", user, "--explain"]

    at = ["--reference-time", "2026-01-01T03:00:00Z", "--time-zone", "America/New_York"]
    shown = run(stack, *asked, *at).output
    wrong = run(stack, *asked, "--time-zone", "Mars/Base")

    assert "'yesterday' is 2025-12-30T05:00:00.000Z to 2025-12-31T05:00:00.000Z" in shown
    assert wrong.exit_code == 1
    assert "time_zone: 'Mars/Base' is not an IANA time zone" in wrong.output


def test_explanation_adds_up_to_the_score(stack: Stack, user: str) -> None:
    remember(stack, user, "pays by invoice")

    shown = run(stack, "search", "words", "how does she pay?", "--user", user, "--explain").output.splitlines()
    data = json.loads(run(stack, "search", "words", "pay?", "--user", user, "--explain", "-o", "json").output)

    score, _, formula = shown[3].strip().partition(" = ")
    assert shown[2].split()[1] == score
    assert evaluate(formula) == pytest.approx(float(score), abs=2e-4)
    assert data["results"][0]["explain"]["score"] == pytest.approx(data["results"][0]["score"], abs=1e-5)


def evaluate(formula: str) -> float:
    """Calculate a formula of `explain`, without the names of its terms and the remark at its end."""
    return float(eval(re.sub(r" [a-z_]+", "", re.sub(r" \(\d.*$", "", formula).replace(" x ", "*"))))


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

"""Forget and receipts over HTTP, by the Python client and on the command line."""

import hashlib
import json
import os
import pty
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from agentmemory_client import ApiError, AsyncClient, Client
from tests.api.test_asking import run
from tests.support.forked import run_agentmemory
from tests.support.programs import clean_environment
from tests.support.web.api_stack import Stack

FORGET, RECEIPTS, MEMORIES = (f"/v1/agents/probe/{name}" for name in ("forget", "receipts", "memories"))
VECTOR = [1.0] * 8


# Conditions that select nothing, for example because their values were lost on the way to the API.
EMPTY: list[dict[str, Any]] = [
    {},
    {"everything": False},
    {"filters": {}},
    {"filters": {}, "everything": True},
    {"filters": {}, "older_than": "2999-01-01T00:00:00Z"},
    *({"filters": empty} for empty in (None, [], "", 0, False)),
    *({"filters": {group: empty}} for group in ("AND", "OR", "NOT") for empty in ([], {}, None, [{}], [[]], [None])),
    {"filters": {"AND": [{"OR": [{"NOT": []}]}]}},
    {"filters": {"NOT": [{"AND": []}]}},
    {"filters": {"NOT": [{"NOT": [{}]}]}},
    {"filters": {"AND": [{"type": "fact"}, {}]}},
    *({"filters": {field: {}}} for field in ("type", "metadata.seen", "created_at", "importance", "tags")),
    *({"filters": {field: {"in": []}}} for field in ("type", "metadata.seen", "tags")),
    *({"filters": {"metadata.seen": {"contains": empty}}} for empty in ("", " ", "\t\n", "?!", "\u200b")),
    {"filters": {"metadata.seen": {"eq": ""}}},
    *({"older_than": empty} for empty in (None, "", {}, [])),
    {"older_than": None, "everything": True},
    {"older_than": None, "filters": {"type": "fact"}},
    {"zone": None},
    {"zone": None, "crypto": True},
    {"crypto": True},
    {"zone": "SENSITIVE", "crypto": True, "everything": True},
    {"filters": {"type": "fact"}, "everything": True},
    {"older_than": "2999-01-01T00:00:00Z", "everything": True},
    *({"everything": value} for value in (None, "true", 1, "", [], {})),
]


def on_terminal(*arguments: str, answer: str, **environment: str) -> tuple[int, str, str]:
    """Run `agentmemory` with a terminal as its input, and type an answer; return exit status, output and errors."""
    typed, terminal = pty.openpty()
    try:
        os.write(typed, f"{answer}\n".encode())
        done = run_agentmemory(*arguments, env=clean_environment() | environment, stdin=terminal)
    finally:
        os.close(terminal)
        os.close(typed)
    return done.returncode, done.stdout, done.stderr


def whole_user(user: str) -> dict[str, Any]:
    return {"user_id": user, "everything": True}


def store(client: httpx.Client, user: str, content: str, **more: Any) -> str:
    answer = client.post(MEMORIES, json={"user_id": user, "content": content, "vector": VECTOR, **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_dry_run_lists_and_run_returns_a_receipt(client: httpx.Client, user: str) -> None:
    ids = sorted([store(client, user, "a", type="fact"), store(client, user, "b", type="task")])
    counts = {"total": 2, "types": {"fact": 1, "task": 1}}

    preview = client.post(FORGET, json={"user_id": user, "everything": True, "dry_run": True}).json()
    receipt = client.post(FORGET, json=whole_user(user)).json()

    assert preview == {"dry_run": True, "counts": counts, "ids": ids, "more": 0}
    assert receipt.keys() == {"id", "counts", "keys_deleted", "sha256", "at"}
    assert receipt["counts"] == counts
    assert receipt["sha256"] == hashlib.sha256("".join(f"{id_}\n" for id_ in ids).encode()).hexdigest()
    assert client.get(MEMORIES, params={"user_id": user}).json()["results"] == []


@pytest.mark.parametrize(
    ("condition", "is_dry_run"),
    [*((condition, False) for condition in EMPTY), (EMPTY[0], True), (EMPTY[-1], True)],
    ids=json.dumps,
)
def test_empty_condition_erases_nothing(
    client: httpx.Client, user: str, condition: dict[str, Any], is_dry_run: bool
) -> None:
    store(client, user, "a", type="fact", pinned=True)

    answer = client.post(FORGET, json={"user_id": user, **condition, "dry_run": is_dry_run})

    assert answer.status_code == 422, answer.text
    assert len(client.get(MEMORIES, params={"user_id": user}).json()["results"]) == 1


@pytest.mark.parametrize(
    ("condition", "field", "words"),
    [
        ({}, "everything", "required without a condition"),
        ({"everything": False}, "everything", "required without a condition"),
        ({"filters": {}}, "filters", "is empty"),
        ({"older_than": None}, "older_than", "is empty"),
        ({"everything": True, "filters": {"type": "fact"}}, "everything", "cannot be combined with filters"),
    ],
)
def test_refused_forget_names_field_and_fix(
    client: httpx.Client, user: str, condition: dict[str, Any], field: str, words: str
) -> None:
    [error] = client.post(FORGET, json={"user_id": user, **condition}).json()["errors"]

    assert error["field"] == field
    assert words in error["message"]


def test_condition_on_unix_epoch_is_not_empty(client: httpx.Client, user: str) -> None:
    store(client, user, "a", type="fact")

    answer = client.post(FORGET, json={"user_id": user, "older_than": "1970-01-01T00:00:00Z"})

    assert (answer.status_code, answer.json()["counts"]["total"]) == (200, 0)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "user_id"),
        ({"user_id": "u", "filters": {"nothing": 1}}, "filters.nothing"),
        ({"user_id": "u", "older_than": "yesterday"}, "older_than"),
        ({"user_id": "u", "dry_run": "yes"}, "dry_run"),
        ({"user_id": "u", "all": True}, "all"),
    ],
)
def test_wrong_field_is_named(client: httpx.Client, body: dict[str, Any], field: str) -> None:
    answer = client.post(FORGET, json=body)

    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_receipts_are_listed_with_their_scope(client: httpx.Client, user: str) -> None:
    for more in ({"everything": True}, {"older_than": "2020-01-01T00:00:00Z"}, {"filters": {"tags": "x"}}):
        assert client.post(FORGET, json={"user_id": user, **more}).is_success

    page = client.get(RECEIPTS, params={"user_id": user, "limit": 2}).json()
    rest = client.get(RECEIPTS, params={"user_id": user, "before": page["next_before"]}).json()

    scopes = [receipt["scope"] for receipt in (*page["results"], *rest["results"])]
    assert scopes == ["filters", "older_than", "user"]
    assert rest["next_before"] is None


def test_unknown_agent_is_404_whatever_the_body(client: httpx.Client) -> None:
    assert client.post("/v1/agents/nobody/forget", json={"all": True}).status_code == 404


def test_client_forgets_and_reads_receipts(stack: Stack, user: str) -> None:
    with Client(stack.api_url) as api:
        for number in range(3):
            api.agent("probe").user(user).add(
                f"m{number}", vector=VECTOR, created_at=datetime(2020 + number, 1, 1, tzinfo=UTC)
            )

        preview = api.agent("probe").would_forget(user, older_than=datetime(2021, 1, 1, tzinfo=UTC))
        receipt = api.agent("probe").forget(user, older_than=datetime(2021, 1, 1, tzinfo=UTC))
        receipts = list(api.agent("probe").receipts(user_id=user, limit=1))

    assert (preview.counts["total"], receipt.counts["total"]) == (1, 1)
    assert [(listed.id, listed.scope) for listed in receipts] == [(receipt.id, "older_than")]
    assert receipt.at.tzinfo is not None


async def test_async_client_forgets_and_reads_receipts(stack: Stack, user: str) -> None:
    async with AsyncClient(stack.api_url) as api:
        receipts = [await api.agent("probe").forget_everything(user) for _ in range(2)]
        listed = [receipt async for receipt in api.agent("probe").receipts(user_id=user, limit=1)]
        with pytest.raises(ApiError, match="filters"):
            await api.agent("probe").would_forget(user, filters={"nothing": 1})

    assert {receipt.id for receipt in listed} == {receipt.id for receipt in receipts}


def test_command_line_previews_then_forgets(stack: Stack, user: str) -> None:
    run(stack, "remember", "words", "pays by invoice", "--user", user, "--type", "fact")

    preview = run(stack, "forget", "words", "--user", user, "--everything", "--dry-run")
    done = run(stack, "forget", "words", "--user", user, "--everything", "--yes")
    listed = run(stack, "receipts", "words", "--user", user, "-o", "json")

    assert preview.output.startswith("would erase 1 memories; nothing was changed")
    assert done.output.startswith("erased 1 memories, receipt ")
    [receipt] = json.loads(listed.output)["results"]
    assert receipt["id"] in done.output
    assert receipt["at"].endswith("Z")
    assert receipt["sha256"] in run(stack, "receipts", "words").output.replace("\n", "")


@pytest.mark.parametrize(
    "options",
    [
        (),
        *(("--filters", text) for text in ("{}", "null", "[]", '""', "0", "false", '{"AND": []}', '{"NOT": [{}]}')),
        ("--older-than", ""),
        ("--zone", "", "--crypto"),
        ("--crypto",),
        ("--everything", "--filters", "{}"),
        ("--everything", "--filters", '{"type": "fact"}'),
        ("--everything", "--older-than", "2999-01-01T00:00:00Z"),
        ("--everything", "--zone", "SENSITIVE", "--crypto"),
    ],
    ids=" ".join,
)
def test_command_line_refuses_an_empty_condition(stack: Stack, user: str, options: tuple[str, ...]) -> None:
    run(stack, "remember", "words", "pays by invoice", "--user", user, "--type", "fact")

    for last in ("--yes", "--dry-run"):
        assert run(stack, "forget", "words", "--user", user, *options, last).exit_code != 0
    assert count_memories(stack, user) == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"crypto": True},
        *({"filters": empty} for empty in ({}, None, [], "")),
        *({"older_than": empty} for empty in (None, "")),
        {"zone": None},
        {"filters": {"type": "fact"}, "older_than": None},
    ],
    ids=str,
)
async def test_clients_refuse_an_empty_condition(stack: Stack, user: str, options: dict[str, Any]) -> None:
    with Client("http://127.0.0.1:1") as api:
        for call in (api.agent("words").user(user).forget, api.agent("words").user(user).would_forget):
            with pytest.raises(ValueError, match="forget_everything"):
                call(**options)
    async with AsyncClient("http://127.0.0.1:1") as later:
        with pytest.raises(ValueError, match="forget_everything"):
            await later.agent("words").user(user).forget(**options)


def count_memories(stack: Stack, user: str) -> int:
    with Client(stack.api_url) as api:
        return int(api.agent("words").would_forget_everything(user).counts["total"])


def test_forget_without_terminal_needs_yes(stack: Stack, user: str) -> None:
    run(stack, "remember", "words", "pays by invoice", "--user", user, "--type", "fact")

    done = run(stack, "forget", "words", "--user", user, "--everything")
    # A piped "y" is no confirmation.
    piped = run(stack, "forget", "words", "--user", user, "--everything", typed="y\n")

    for refused in (done, piped):
        assert refused.exit_code == 2
        assert "not a terminal" in refused.output
        assert "nothing was done: add --yes" in refused.output
    assert count_memories(stack, user) == 1


@pytest.mark.parametrize(("answer", "status", "remaining"), [("n", 1, 1), ("", 1, 1), ("y", 0, 0)])
def test_terminal_shows_counts_and_asks(stack: Stack, user: str, answer: str, status: int, remaining: int) -> None:
    run(stack, "remember", "words", "pays by invoice", "--user", user, "--type", "fact")

    code, output, errors = on_terminal(
        "forget", "words", "--user", user, "--everything", "--url", stack.api_url, "-o", "json", answer=answer
    )

    assert code == status, errors
    assert errors.index("would erase 1 memories") < errors.index("Erase them permanently")
    assert count_memories(stack, user) == remaining
    # Standard output has the receipt only, without the question.
    assert (json.loads(output)["counts"]["total"] if output.strip() else None) == (1 if answer == "y" else None)

"""Anthropic's memory tool on files of the agent `words`."""

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import httpx2
import pytest
from anthropic import Anthropic
from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError

from agentmemory_client import Agent, ApiError, Client
from agentmemory_client.adapters.anthropic_memory import AgentMemoryTool, AsyncAgentMemoryTool
from agentmemory_client.adapters.files import FileChanged, UserFiles

LISTING = "Here're the files and directories up to 2 levels deep in {}, excluding hidden items:"


@pytest.fixture
def tool(agent: Agent, owner: str) -> AgentMemoryTool:
    return AgentMemoryTool(agent, owner)


@pytest.fixture
def files(agent: Agent, owner: str) -> UserFiles:
    return UserFiles(agent, owner)


def run(tool: BetaAbstractMemoryTool, command: str, **fields: Any) -> Any:
    """Run a command as the model sends it."""
    return tool.call({"command": command, **fields})


def create(tool: BetaAbstractMemoryTool, path: str, text: str = "text") -> None:
    run(tool, "create", path=f"/memories/{path}", file_text=text)


def texts(files: UserFiles) -> dict[str, str]:
    return {file.path: file.text for file in files.files()}


def numbered(text: str) -> list[str]:
    return text.split("\n")[1:]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/etc/passwd", "must start with /memories"),
        ("memories/a", "must start with /memories"),
        ("", "must start with /memories"),
        ("/memories2/a", "must start with /memories"),
        ("/memories/../a", "would escape"),
        ("/memories/a/../../etc/passwd", "would escape"),
        ("/memories/..", "would escape"),
        (f"/memories/{'a' * 257}", "more than 256 characters"),
        (f"/memories/{'a/' * 14}b", "more than 13 directories"),
        ("/memories/a\x00b", "refused"),
        ("/memories/a\nb/c", "refused"),
        ("/memories/\u200b", "refused"),
        ("/memories/\ud83d", "not valid Unicode"),
        ("/memories", "already exists"),
        ("/memories/./", "already exists"),
    ],
)
def test_invalid_path_is_refused(tool: AgentMemoryTool, files: UserFiles, path: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        run(tool, "create", path=path, file_text="text")
    assert texts(files) == {}


def test_unusual_names_are_ordinary_files(tool: AgentMemoryTool, files: UserFiles) -> None:
    names = ["%2e%2e", "..%2fa", "Zoë 喝茶.md", "a b.txt", "?x=1&namespace=memories", "-", "\U0001f600/*"]
    for name in names:
        create(tool, name, name)

    assert texts(files) == {name: name for name in names}
    assert numbered(run(tool, "view", path="/memories/%2e%2e")) == ["     1\t%2e%2e"]
    # The other spelling of the same name is the same file.
    assert "喝茶" in run(tool, "view", path="/memories/Zoe\u0308 喝茶.md")
    assert run(tool, "view", path="/memories//x/.././%2e%2e").endswith("\t%2e%2e")


def test_longest_path_is_a_file(tool: AgentMemoryTool, files: UserFiles) -> None:
    path = "/".join(["ä" * 256] * 14)
    create(tool, path)

    assert texts(files) == {path: "text"}
    run(tool, "rename", old_path="/memories/" + "ä" * 256, new_path="/memories/short")
    assert list(texts(files)) == [path.replace("ä" * 256, "short", 1)]


@pytest.mark.parametrize("text", ["", "\n", " ", "\u200b", "a\r\nb", "x" * 900_000, "ends\n\n"])
def test_text_is_kept_exactly(tool: AgentMemoryTool, files: UserFiles, text: str) -> None:
    create(tool, "a", text)

    assert texts(files) == {"a": text}


def test_too_large_text_is_refused(tool: AgentMemoryTool, files: UserFiles) -> None:
    with pytest.raises(ToolError, match="larger than 1 MiB"):
        create(tool, "a", "x" * 1_100_000)
    create(tool, "a", "x" * 900_000)
    with pytest.raises(ToolError, match="larger than 1 MiB"):
        run(tool, "insert", path="/memories/a", insert_line=0, insert_text="y" * 200_000)
    with pytest.raises(ToolError, match="not valid Unicode"):
        create(tool, "b", "\ud83d")
    assert texts(files) == {"a": "x" * 900_000}


def test_file_and_directory_exclude_each_other(tool: AgentMemoryTool, files: UserFiles) -> None:
    create(tool, "a/b")

    with pytest.raises(ToolError, match="File /memories/a already exists"):
        create(tool, "a")
    with pytest.raises(ToolError, match="/memories/a/b is a file"):
        create(tool, "a/b/c/d")
    with pytest.raises(ToolError, match="is not a file"):
        run(tool, "insert", path="/memories/a", insert_line=0, insert_text="x")
    with pytest.raises(ToolError, match="inside itself"):
        run(tool, "rename", old_path="/memories/a", new_path="/memories/a/x")
    create(tool, "x")
    with pytest.raises(ToolError, match="/memories/x is a file"):
        run(tool, "rename", old_path="/memories/a", new_path="/memories/x/a")
    with pytest.raises(ToolError, match="destination /memories/a already exists"):
        run(tool, "rename", old_path="/memories/x", new_path="/memories/a")
    assert texts(files) == {"a/b": "text", "x": "text"}


def test_name_that_begins_like_another_is_no_directory(tool: AgentMemoryTool, files: UserFiles) -> None:
    for path in ("a/1", "ab/2", "a.txt"):
        create(tool, path)

    assert numbered(run(tool, "view", path="/memories/a")) == ["4B\t/memories/a", "4B\t/memories/a/1"]
    run(tool, "delete", path="/memories/a")
    assert texts(files) == {"ab/2": "text", "a.txt": "text"}


def test_listing_of_two_levels(tool: AgentMemoryTool) -> None:
    sizes = {"a/b/c/d": 10, "a/b.txt": 1_536, "a.md": 0, ".hidden": 5, "z/.git/x": 5, "z/y": 1 << 19}
    for path, size in sizes.items():
        create(tool, path, "x" * size)

    header, *lines = run(tool, "view", path="/memories/").split("\n")
    assert header == LISTING.format("/memories")
    assert lines == [
        "513.5K\t/memories",
        "1.5K\t/memories/a/",
        "10B\t/memories/a/b/",
        "1.5K\t/memories/a/b.txt",
        "0B\t/memories/a.md",
        "512K\t/memories/z/",
        "512K\t/memories/z/y",
    ]


def test_empty_memory_has_an_empty_listing(tool: AgentMemoryTool) -> None:
    assert run(tool, "view", path="/memories") == f"{LISTING.format('/memories')}\n0B\t/memories"
    with pytest.raises(ToolError, match="does not exist"):
        run(tool, "view", path="/memories/a")


@pytest.mark.parametrize(
    ("view_range", "expected"),
    [
        ([2, 3], [2, 3]),
        ([3, -1], [3, 4]),
        ([0, 1], [1]),
        ([-5, 2], [1, 2]),
        ([9, 12], []),
        ([3, 2], []),
        ([2], [1, 2, 3, 4]),
    ],
)
def test_view_of_a_range(tool: AgentMemoryTool, view_range: list[int], expected: list[int]) -> None:
    create(tool, "a", "1\n2\n3\n4")

    lines = numbered(run(tool, "view", path="/memories/a", view_range=view_range))
    assert lines == ([f"     {number}\t{number}" for number in expected] or [""])


def test_replacement_must_be_unique(tool: AgentMemoryTool, files: UserFiles) -> None:
    create(tool, "a", "x\n" * 1_000 + "aaa")
    for old, message in {
        "": "did not appear",
        "y": "did not appear",
        "x": "lines: 1, 2, .*, 20, \\.\\.\\.\\. Please",
    }.items():
        with pytest.raises(ToolError, match=message):
            run(tool, "str_replace", path="/memories/a", old_str=old, new_str="z")

    # Overlapping occurrences are one, as of the framework's own tool.
    run(tool, "str_replace", path="/memories/a", old_str="aa", new_str="b")
    assert texts(files)["a"].endswith("\nba")


def test_insertion_into_empty_and_crlf_files(tool: AgentMemoryTool, files: UserFiles) -> None:
    create(tool, "empty", "")
    run(tool, "insert", path="/memories/empty", insert_line=0, insert_text="first\n\n")
    create(tool, "crlf", "1\r\n2\u2028x\r\n")
    run(tool, "insert", path="/memories/crlf", insert_line=1, insert_text="new")

    assert texts(files) == {"empty": "first\n", "crlf": "1\r\nnew\n2\u2028x\r\n"}
    with pytest.raises(ToolError, match=r"\[0, 3\]"):
        run(tool, "insert", path="/memories/crlf", insert_line=-1, insert_text="x")


def outcomes(calls: list[Callable[[], Any]]) -> list[Any]:
    """Make calls at the same time; return the result or the ToolError of each."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ToolError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(outcome, calls))


def test_one_of_several_creators_wins(agent: Agent, owner: str, files: UserFiles) -> None:
    tools = [AgentMemoryTool(agent, owner) for _ in range(8)]
    results = outcomes([lambda tool=tool, n=n: create(tool, "a", str(n)) for n, tool in enumerate(tools)])

    [winner] = [number for number, result in enumerate(results) if result is None]
    assert texts(files) == {"a": str(winner)}


def test_concurrent_insertions_are_all_kept(agent: Agent, owner: str, tool: AgentMemoryTool, files: UserFiles) -> None:
    create(tool, "a", "")
    tools = [AgentMemoryTool(agent, owner) for _ in range(8)]
    insert = {"path": "/memories/a", "insert_line": 0}
    outcomes([lambda tool=tool, n=n: run(tool, "insert", insert_text=str(n), **insert) for n, tool in enumerate(tools)])

    assert sorted(texts(files)["a"].split()) == sorted(map(str, range(8)))


def test_one_of_several_renamings_wins(agent: Agent, owner: str, tool: AgentMemoryTool, files: UserFiles) -> None:
    create(tool, "a")
    tools = [AgentMemoryTool(agent, owner) for _ in range(4)]
    rename = {"old_path": "/memories/a", "new_path": "/memories/b"}
    results = outcomes([lambda tool=tool: run(tool, "rename", **rename) for tool in tools])

    assert texts(files) == {"b": "text"}
    assert sum(isinstance(result, str) for result in results) == 1


@pytest.fixture
def lossy(api_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """An agent of a client that loses the response to the first attempt of each write."""
    request, attempted = httpx.Client.request, set[Any]()

    def lose(self: httpx.Client, method: str, url: str, **options: Any) -> httpx.Response:
        response = request(self, method, url, **options)
        key = options["headers"].get("Idempotency-Key")
        if method == "GET" or key in attempted:
            return response
        attempted.add(key)
        raise httpx.ReadError("lost")

    monkeypatch.setattr(httpx.Client, "request", lose)
    with Client(api_url, wait_max_s=0.01) as client:
        yield client.agent("words")
    assert None not in attempted


def test_write_whose_response_is_lost_succeeds_once(lossy: Agent, owner: str, files: UserFiles) -> None:
    tool = AgentMemoryTool(lossy, owner)
    create(tool, "a", "")
    create(tool, "c")

    assert run(tool, "insert", path="/memories/a", insert_line=0, insert_text="x")
    assert run(tool, "rename", old_path="/memories/a", new_path="/memories/b")
    assert run(tool, "delete", path="/memories/c")
    assert texts(files) == {"b": "x\n"}


def test_renaming_to_too_deep_a_path_moves_nothing(tool: AgentMemoryTool, files: UserFiles) -> None:
    deep = "old/" + "d/" * 12 + "z"
    create(tool, "old/a")
    create(tool, deep)

    with pytest.raises(ToolError, match="more than 13 directories"):
        run(tool, "rename", old_path="/memories/old", new_path="/memories/new/below")

    assert files.paths() == ["old/a", deep]


def test_change_during_a_renaming_is_kept(
    tool: AgentMemoryTool, files: UserFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tool, "a", "before")
    stored = UserFiles.create

    def create_and_change(self: UserFiles, path: str, text: str, **options: Any) -> str:
        version = stored(self, path, text, **options)
        file = files.read("a")
        assert file
        files.replace(file, "after")
        return version

    monkeypatch.setattr(UserFiles, "create", create_and_change)
    with pytest.raises(ToolError, match="changed during the renaming"):
        run(tool, "rename", old_path="/memories/a", new_path="/memories/b")
    assert texts(files) == {"a": "after", "b": "before"}


def test_version_that_was_not_read_alone_changes_nothing(files: UserFiles) -> None:
    files.create("a", "text")
    [listed] = files.files()

    with pytest.raises(ValueError, match="is empty"):
        files.replace(listed, "another")
    file = files.read("a")
    assert file
    files.delete(file)
    for change in (files.delete, lambda file: files.replace(file, "x")):
        with pytest.raises(FileChanged):
            change(file)


def test_a_thousand_files(tool: AgentMemoryTool, agent: Agent, owner: str, files: UserFiles) -> None:
    namespace = ("memories", owner, "files", "many")
    items = [{"namespace": namespace, "key": f"{n:04}", "content": "by another client"} for n in range(1_000)]
    assert not [error for error in agent.put_items(items) if isinstance(error, ApiError)]

    lines = numbered(run(tool, "view", path="/memories/many"))
    assert lines[1] == "17B\t/memories/many/0000"
    assert len(lines) == 1_001
    assert len(files.paths()) == 1_000
    assert numbered(run(tool, "view", path="/memories/many/0999")) == ["     1\tby another client"]


def test_users_and_folders_are_apart(agent: Agent, owner: str, tool: AgentMemoryTool) -> None:
    create(tool, "a")
    others = AgentMemoryTool(agent, owner, folder="notes"), AgentMemoryTool(agent, f"{owner}/files")

    for other in others:
        with pytest.raises(ToolError, match="does not exist"):
            run(other, "view", path="/memories/a")
        create(other, "a")
    assert run(tool, "delete", path="/memories/a")
    assert all(run(other, "view", path="/memories/a") for other in others)
    assert tool.clear_all_memory() == "All memory cleared"


def test_files_are_found_by_a_search(agent: Agent, owner: str, tool: AgentMemoryTool) -> None:
    create(tool, "billing/ada.md", "Ada pays by invoice")

    [found] = agent.user(owner).search("how does she pay?", namespace=["memories", owner, "files"]).results
    assert (found.key, found.namespace[3:]) == ("ada.md", ("billing",))


@pytest.fixture
def away() -> Iterator[Agent]:
    with Client("http://127.0.0.1:9", retries=0) as client:
        yield client.agent("words")


def test_outage_is_an_error_for_the_model(away: Agent, client: Client) -> None:
    for fields in (
        {"command": "view", "path": "/memories"},
        {"command": "create", "path": "/memories/a", "file_text": "x"},
        {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"},
    ):
        with pytest.raises(ToolError, match="unavailable now"):
            AgentMemoryTool(away, "ada").call(fields)
    with pytest.raises(ToolError, match="refused the command: 404"):
        create(AgentMemoryTool(client.agent("nobody"), "ada"), "a")


def test_asynchronous_tool(agent: Agent, owner: str, files: UserFiles) -> None:
    tool = AsyncAgentMemoryTool(agent, owner, cache_control={"type": "ephemeral"})
    assert isinstance(tool, BetaAsyncAbstractMemoryTool)

    async def use() -> list[Any]:
        results = []
        for fields in (
            {"command": "create", "path": "/memories/a", "file_text": "one"},
            {"command": "insert", "path": "/memories/a", "insert_line": 1, "insert_text": "two"},
            {"command": "str_replace", "path": "/memories/a", "old_str": "one", "new_str": "1"},
            {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"},
            {"command": "view", "path": "/memories/b"},
        ):
            results.append(await tool.call(fields))
        assert texts(files) == {"b": "1\ntwo\n"}
        results.append(await tool.call({"command": "delete", "path": "/memories/b"}))
        return [*results, await tool.clear_all_memory()]

    assert asyncio.run(use())[-2:] == ["Successfully deleted /memories/b", "All memory cleared"]
    assert tool.to_dict() == {"type": "memory_20250818", "name": "memory", "cache_control": {"type": "ephemeral"}}


class ScriptedModel:
    """Stands for Anthropic's API: calls the tool with each input in turn, then ends. Keeps the results of the tool."""

    def __init__(self, *inputs: dict[str, Any]) -> None:
        self._inputs = iter(inputs)
        self.results = list[tuple[str, bool]]()

    def respond(self, request: httpx2.Request) -> httpx2.Response:
        content = json.loads(request.content)["messages"][-1]["content"]
        if isinstance(content, list):
            self.results += [(block["content"], block.get("is_error", False)) for block in content]
        call = next(self._inputs, None)
        block = (
            {"type": "text", "text": "done"} if call is None else {"type": "tool_use", "name": "memory", "input": call}
        )
        return httpx2.Response(
            200,
            json={
                "id": "message",
                "type": "message",
                "role": "assistant",
                "model": "a-model",
                "content": [block | ({"id": uuid4().hex} if call else {})],
                "stop_reason": "tool_use" if call else "end_turn",
                "usage": {"input_tokens": 1, "output_tokens": 1},
            },
        )


def test_conversation_continues_after_an_error(agent: Agent, owner: str, away: Agent) -> None:
    create_file = {"command": "create", "path": "/memories/a.md", "file_text": "Pays by invoice"}
    view = {"command": "view", "path": "/memories/a.md"}
    for tool, expected in (
        (AgentMemoryTool(agent, owner), [("created", False), ("already exists", True), ("Pays by invoice", False)]),
        (AgentMemoryTool(away, owner), [("unavailable now", True)] * 3),
    ):
        model = ScriptedModel(create_file, create_file, view)
        http = httpx2.Client(transport=httpx2.MockTransport(model.respond))
        messages = Anthropic(api_key="none", http_client=http).beta.messages
        runner = messages.tool_runner(
            model="a-model", max_tokens=100, messages=[{"role": "user", "content": "hi"}], tools=[tool]
        )

        assert runner.until_done().stop_reason == "end_turn"
        for (result, is_error), (text, is_expected) in zip(model.results, expected, strict=True):
            assert text in result
            assert is_error == is_expected

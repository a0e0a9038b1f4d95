"""Commands on stored memories: list, get, history and delete."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from agentmemory_operator.adapters.folder.manifests import count_noun
from agentmemory_operator.entrypoints.cli.composition import ApiAccess, QdrantAccess
from agentmemory_operator.entrypoints.cli.memories.api_commands import (
    ApiCommand,
    ApiTarget,
    TagsMatch,
    User,
    add_api_verb,
    given_options,
    to_json_types,
)
from agentmemory_operator.entrypoints.cli.memories.search_view import LOCKED, NOTHING_THERE, content_of
from agentmemory_operator.entrypoints.cli.run import Yes, check_answerable, confirm
from agentmemory_operator.entrypoints.cli.tables import Section, show

if TYPE_CHECKING:
    # The import takes half a second, which other commands should not wait for.
    from agentmemory_client import AsyncAgent, Memory, Page
    from agentmemory_operator.entrypoints.cli.memories.api_commands import Call

PAGE_SIZE = 20
DELETE = "Delete this memory?"
# Fields of a memory that are shown in the heading, or first.
HEADED = {"id", "user_id", "content"}
COLUMNS = ("ID", "TYPE", "CREATED", "CONTENT")

MemoryId = Annotated[str, typer.Argument(help="Id of the memory, from `list` or `search`.")]


def add_stored(cli: typer.Typer, access: ApiAccess, inspection: QdrantAccess) -> None:
    """Add `list`, `get`, `history` and `delete` to a command line."""
    api = ApiTarget(access, inspection)
    add_api_verb(cli, list_, ApiCommand(api, list_section))
    add_api_verb(cli, get, ApiCommand(api, memory_section))
    add_api_verb(cli, history, ApiCommand(api, history_section))
    add_api_verb(cli, delete, ApiCommand(api, _deleted_section))


def list_(  # noqa: PLR0913 # each is an option
    user: User,
    type_: Annotated[list[str] | None, typer.Option("--type", help="Memory type to list; repeatable.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag that the memories must have; repeatable.")] = None,
    tags_match: Annotated[TagsMatch | None, typer.Option(help="all: memories have every --tag. Default: any.")] = None,
    session: Annotated[str | None, typer.Option(help="Session of the memories.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of memories.")] = PAGE_SIZE,
    cursor: Annotated[str | None, typer.Option(help="Cursor from the end of the previous page.")] = None,
    *,
    superseded: Annotated[bool, typer.Option("--superseded", help="Include superseded memories.")] = False,
) -> "Call":
    """List a user's memories, newest first."""
    options = given_options({"type": type_, "tag": tag, "tags_match": tags_match and tags_match.value})
    options |= given_options({"session_id": session, "limit": limit, "cursor": cursor})
    options |= {"include_superseded": True} if superseded else {}
    return lambda agent: agent.user(user).page(**options)


def get(memory_id: MemoryId, user: User) -> "Call":
    """Show one memory with all its fields."""
    return lambda agent: agent.user(user).get(memory_id)


def history(memory_id: MemoryId, user: User) -> "Call":
    """List all versions of a memory, oldest first."""

    async def read(agent: "AsyncAgent") -> dict[str, Any]:
        return {"results": await agent.user(user).history(memory_id)}

    return read


def delete(memory_id: MemoryId, user: User, *, yes: Yes = False) -> "Call":
    """Delete one memory; the memory that it superseded becomes visible again."""
    check_answerable(DELETE, yes=yes)

    async def remove(agent: "AsyncAgent") -> dict[str, Any]:
        memory = await agent.user(user).get(memory_id)  # an unknown id is an error before the question
        if not yes:
            show([_preview(memory)], Console(stderr=True))
        confirm(DELETE, yes=yes, err=True)
        await agent.user(user).delete(memory_id)
        return {"deleted": memory}

    return remove


def list_section(page: "Page") -> Section:
    """Render a page of memories as a table, with the option that continues it."""
    rows = tuple(_row(memory) for memory in page.results)
    notes = [] if rows else [NOTHING_THERE]
    notes += [f"there are more: add --cursor {page.next_cursor}"] if page.next_cursor else []
    return Section(
        f"{len(rows)} {'memory' if len(rows) == 1 else 'memories'}, newest first",
        columns=COLUMNS if rows else (),
        rows=rows,
        notes=tuple(notes),
        cut="CONTENT",
    )


def memory_section(memory: "Memory") -> Section:
    """Render the fields of a memory that have a value, below its content."""
    fields = to_json_types(memory).items()
    present = {name: value for name, value in fields if name not in HEADED and value not in (None, [], {}, False)}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in present.items()}
    rows = (("content", memory.content or LOCKED), *texts.items())
    return Section(f"{memory.id} of {memory.user_id}", rows=rows)


def history_section(answer: dict[str, Any]) -> Section:
    """Render the versions of a memory as a table, with the time when each was superseded."""
    memories = answer["results"]
    rows = tuple((*_row(memory)[:3], _superseded(memory), content_of(memory)) for memory in memories)
    columns = (*COLUMNS[:3], "SUPERSEDED", COLUMNS[-1])
    return Section(f"{count_noun(len(rows), 'version')}, oldest first", columns=columns, rows=rows, cut="CONTENT")


def _preview(memory: "Memory") -> Section:
    """Render a memory to delete. Deleting the latest version shows the one before it again."""
    section = memory_section(memory)
    if memory.supersedes is None or memory.superseded_by is not None:
        return section
    return replace(section, notes=(f"{memory.supersedes}, which it superseded, becomes visible again",))


def _deleted_section(answer: dict[str, Any]) -> Section:
    return Section(f"deleted {answer['deleted'].id}")


def _row(memory: "Memory") -> tuple[str, ...]:
    return (memory.id, memory.type, f"{memory.created_at:%Y-%m-%d}", content_of(memory))


def _superseded(memory: "Memory") -> str:
    return f"{memory.superseded_at:%Y-%m-%d}" if memory.superseded_at else "-"

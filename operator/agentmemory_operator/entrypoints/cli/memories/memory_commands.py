"""Commands that call the retrieval API: search, remember, forget and receipts."""

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from agentmemory_operator.entrypoints.cli.composition import ApiAccess, QdrantAccess
from agentmemory_operator.entrypoints.cli.memories.search_view import result_section
from agentmemory_operator.entrypoints.cli.options import (
    Context,
    TableJsonOrYaml,
    print_document,
    refuse_empty_values,
    take_options,
)
from agentmemory_operator.entrypoints.cli.run import Yes, check_answerable, confirm, run_command
from agentmemory_operator.entrypoints.cli.stacks import Stacks, read_stacks
from agentmemory_operator.entrypoints.cli.tables import Section, show
from agentmemory_operator.runtime.object_table import AGENT_MEMORY
from agentmemory_operator.runtime.rules.json_keys import reject_repeated_keys

if TYPE_CHECKING:
    # The import takes half a second, which other commands should not wait for.
    from agentmemory_client import AsyncAgent, Preview, Receipt, ReceiptsPage, Stored

    Call = Callable[[AsyncAgent], Coroutine[Any, Any, Any]]
    """Sends the request of a command to an agent."""

FORGET = "Erase them permanently, including copies and anything stored in the meantime?"


class TagsMatch(StrEnum):
    """Match modes for the given tags: a memory must have any or all of them."""

    ANY = "any"
    ALL = "all"


Name = Annotated[
    str, typer.Argument(help="Name of the AgentMemory; without -n and --context, the agent's name in the API.")
]
User = Annotated[str, typer.Option("--user", help="User who owns the memories.")]
Namespace = Annotated[
    str | None, typer.Option("-n", "--namespace", help="Namespace of the AgentMemory that NAME refers to.")
]
Url = Annotated[
    str | None,
    typer.Option("--url", help="URL of the API. Default: AGENTMEMORY_URL, or else a running development stack."),
]
Token = Annotated[str | None, typer.Option("--token", help="Bearer token for the API. Default: AGENTMEMORY_TOKEN.")]
Output = Annotated[TableJsonOrYaml, typer.Option("-o", "--output", help="Output format.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options that select the API. None as URL or token uses the environment's value.

    Attributes:
        stacks: Running development stacks.
        namespace: Namespace of the AgentMemory that has the agent's name.
        context: kubeconfig context of that AgentMemory. If namespace and context are None, no object is read.
    """

    stacks: Stacks
    namespace: str | None
    context: str | None
    url: str | None
    token: str | None


@dataclass(frozen=True, slots=True)
class ApiTarget:
    """Access to the retrieval API, and to the AgentMemory objects from which agent names are read."""

    access: ApiAccess
    inspection: QdrantAccess

    @asynccontextmanager
    async def open_agent(self, name: str, options: "ServerOptions") -> "AsyncIterator[AsyncAgent]":
        """Yield a client of an agent.

        Args:
            name: Name of the agent. With a namespace or context, name of its AgentMemory, which has the agent's name.

        Raises:
            AgentMemoryError: If the options do not determine the API, the object cannot be read, or a request to the
                API fails inside the block.
        """
        url, stack = options.stacks.find_api(options.url or self.access.url, options.context)
        agent = name
        if options.namespace is not None or options.context is not None:
            agent = await self._agent_of(name, options, stack.manifests if stack else None)
        async with self.access.open_client(url, options.token or self.access.token) as client:
            yield client.agent(agent)

    async def _agent_of(self, name: str, options: "ServerOptions", manifests: Path | None) -> str:
        async with self.inspection.open_objects(options.context, manifests) as (reader, default):
            document = await reader.read_object(AGENT_MEMORY, options.namespace or default, name)
        return str(document["spec"].get("agent") or name)


def add_asking(cli: typer.Typer, access: ApiAccess, inspection: QdrantAccess) -> None:
    """Add `search`, `remember`, `forget` and `receipts` to a command line."""
    api = ApiTarget(access, inspection)
    _add_verb(cli, search, _ApiCommand(api, result_section))
    _add_verb(cli, remember, _ApiCommand(api, _stored_section))
    _add_verb(cli, forget, _ApiCommand(api, _forgotten_section))
    _add_verb(cli, receipts, _ApiCommand(api, _receipts_section))


def search(  # noqa: PLR0913 # each is an option
    query: Annotated[str, typer.Argument(help="Search query.")],
    user: User,
    type_: Annotated[list[str] | None, typer.Option("--type", help="Memory type to search in; repeatable.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag that results must have; repeatable.")] = None,
    tags_match: Annotated[TagsMatch | None, typer.Option(help="all: results have every --tag. Default: any.")] = None,
    filters: Annotated[str | None, typer.Option(help="Filter conditions as JSON (docs/filters.md).")] = None,
    top_k: Annotated[int | None, typer.Option(help="Maximum number of results. Default: the object's limit.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Minimum score; -1 keeps all results. Default: the object's scoreThreshold.")
    ] = None,
    min_similarity: Annotated[
        float | None,
        typer.Option(help="Minimum similarity; -1 keeps all results. Default: the object's minSimilarity."),
    ] = None,
    session: Annotated[str | None, typer.Option(help="Session to search in.")] = None,
    *,
    explain: Annotated[bool, typer.Option("--explain", help="Show the parts of each score.")] = False,
) -> "Call":
    """Search a user's memories, ranked by the AgentMemory's settings."""
    options = _given({"types": type_, "tags": tag, "filters": _filters_of(filters), "top_k": top_k})
    options |= _given({"tags_match": tags_match and tags_match.value, "threshold": threshold, "session_id": session})
    options |= _given({"min_similarity": min_similarity}) | ({"explain": True} if explain else {})
    return lambda agent: agent.user(user).search(query, **options)


def remember(  # noqa: PLR0913 # each is an option
    text: Annotated[str, typer.Argument(help="Text to store.")],
    user: User,
    type_: Annotated[str | None, typer.Option("--type", help="Memory type, one of the agent's.")] = None,
    importance: Annotated[str | None, typer.Option(help="Importance: 0..1, low, medium, high or critical.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag of the memory; repeatable.")] = None,
    supersedes: Annotated[str | None, typer.Option(help="Id of the memory to supersede.")] = None,
    zone: Annotated[str | None, typer.Option(help="Privacy zone: SENSITIVE, PERSONAL or PROFESSIONAL.")] = None,
) -> "Call":
    """Store a memory for a user."""
    options = _given(
        {"type": type_, "importance": _importance_of(importance), "tags": tag, "supersedes": supersedes, "zone": zone}
    )
    return lambda agent: agent.user(user).add(text, **options)


def forget(  # noqa: PLR0913 # each is an option
    user: Annotated[
        str | None,
        typer.Option("--user", help="User whose memories to erase; omit it to delete only an organisation's key."),
    ] = None,
    filters: Annotated[str | None, typer.Option(help="Erase only memories that match these filters (JSON).")] = None,
    older_than: Annotated[str | None, typer.Option(help="Erase only memories created before this time.")] = None,
    zone: Annotated[str | None, typer.Option(help="Erase only this privacy zone; only with --crypto.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--everything", help="Erase the whole user.")] = False,
    crypto: Annotated[
        bool, typer.Option("--crypto", help="Delete the encryption keys first, which makes all copies unreadable.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be erased; erase nothing.")] = False,
    yes: Yes = False,
) -> "Call":
    """Erase a user's memories permanently, including copies; all of them only with --everything."""
    conditions = _given({"filters": _filters_of(filters), "older_than": older_than, "zone": zone})
    _check_selection(conditions, user, everything=everything)
    options = conditions | ({"crypto": True} if crypto else {})

    async def preview(agent: "AsyncAgent") -> "Preview":
        if everything and user is not None:
            return await agent.would_forget_everything(user, **options)
        return await agent.would_forget(user, **options)

    async def erase(agent: "AsyncAgent") -> "Receipt":
        if not yes:
            show([_forgotten_section(await preview(agent))], Console(stderr=True))
        confirm(FORGET, yes=yes, err=True)
        if everything and user is not None:
            return await agent.forget_everything(user, **options)
        return await agent.forget(user, **options)

    if dry_run:
        return preview
    check_answerable(FORGET, yes=yes)
    return erase


def _check_selection(conditions: Mapping[str, Any], user: str | None, *, everything: bool) -> None:
    """Raise typer.BadParameter unless there are either non-empty conditions, or --everything and a user."""
    for name, condition in conditions.items():
        if not condition:
            raise typer.BadParameter(f"--{name.replace('_', '-')} is empty: give a condition, or --everything")
    if everything and conditions:
        raise typer.BadParameter("--everything cannot be combined with --filters, --older-than or --zone")
    if everything and user is None:
        raise typer.BadParameter("--everything needs --user: whose memories are erased")
    if not everything and not conditions:
        raise typer.BadParameter(
            "give --filters, --older-than or --zone to erase a part, or --everything to erase the whole user"
        )


def receipts(
    user: Annotated[str | None, typer.Option("--user", help="User whose receipts to list. Default: all.")] = None,
) -> "Call":
    """List the receipts of erased memories."""
    options = _given({"user_id": user})

    async def read(agent: "AsyncAgent") -> "ReceiptsPage":
        from agentmemory_client import ReceiptsPage  # slow: see the imports of this module

        return ReceiptsPage(results=tuple([receipt async for receipt in agent.receipts(**options)]))

    return read


@dataclass(frozen=True, slots=True)
class _ApiCommand:
    """The API that a command calls, and the function that renders its response."""

    api: ApiTarget
    section: Callable[[Any], Section]


def _add_verb(cli: typer.Typer, choose: "Callable[..., Call]", api_command: _ApiCommand) -> None:
    """Add a command with the options of `choose`, which builds the request, and the options that select the API."""

    def command(  # noqa: PLR0913 # each is an option
        *,
        ctx: typer.Context,
        name: Name,
        namespace: Namespace = None,
        context: Context = None,
        url: Url = None,
        token: Token = None,
        output: Output = TableJsonOrYaml.TABLE,
        **arguments: Any,
    ) -> None:
        call = choose(**arguments)
        refuse_empty_values(ctx)
        options = ServerOptions(stacks=read_stacks(ctx), namespace=namespace, context=context, url=url, token=token)

        async def ask() -> Any:
            async with api_command.api.open_agent(name, options) as agent:
                return await call(agent)

        _print(run_command(ask()), api_command.section, output)

    # Order of the parameters: name, those of the request, those that select the API.
    take_options(command, choose, after=2)
    cli.command(choose.__name__, help=choose.__doc__)(command)


def _filters_of(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        filters = json.loads(text, object_pairs_hook=reject_repeated_keys)
    except ValueError as error:
        raise typer.BadParameter(f"--filters is not JSON: {error}") from error
    if not isinstance(filters, dict):
        raise typer.BadParameter('--filters is not a JSON object, for example {"tags": "work"}')
    return filters


def _importance_of(text: str | None) -> float | str | None:
    """Convert a number. Return other texts unchanged, for example `high`: the API checks them."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and value != []}


def _print(response: Any, section: Callable[[Any], Section], output: TableJsonOrYaml) -> None:
    document = _plain(response)
    if output is TableJsonOrYaml.TABLE:
        show([section(response)], Console())
    else:
        print_document(document, output)


def _stored_section(stored: "Stored") -> Section:
    replaced = f", replacing {stored.supersedes}" if stored.supersedes else ""
    return Section(f"{stored.event} {stored.id}{replaced}", notes=stored.warnings)


def _receipt_section(receipt: "Receipt") -> Section:
    columns, rows = _types_of(receipt.counts)
    heading = f"erased {receipt.counts['total']} memories, receipt {receipt.id}"
    notes = (f"keys of {', '.join(receipt.keys_deleted)} destroyed",) if receipt.keys_deleted else ()
    return Section(heading, columns=columns, rows=rows, notes=notes)


def _forgotten_section(result: "Receipt | Preview") -> Section:
    from agentmemory_client import Receipt  # slow: see the imports of this module

    if isinstance(result, Receipt):
        return _receipt_section(result)
    columns, rows = _types_of(result.counts)
    notes = (*result.ids, *([f"and {result.more} more"] if result.more else []))
    heading = f"would erase {result.counts['total']} memories; nothing was changed"
    return Section(heading, columns=columns, rows=rows, notes=notes)


def _types_of(counts: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    rows = tuple((name, str(count)) for name, count in counts["types"].items())
    return (("TYPE", "MEMORIES") if rows else ()), rows


def _receipts_section(page: "ReceiptsPage") -> Section:
    rows = tuple(
        (receipt.id, _plain(receipt.at), receipt.scope or "", str(receipt.counts["total"]), receipt.sha256)
        for receipt in page.results
    )
    columns = ("RECEIPT", "AT", "SCOPE", "MEMORIES", "SHA-256") if rows else ()
    return Section(f"{len(rows)} receipts", columns=columns, rows=rows, cut="SHA-256")


def _plain(value: Any) -> Any:
    """Convert a response to JSON types. Unknown fields, which a newer API may send, are kept."""
    if is_dataclass(value):
        parts = {part.name: getattr(value, part.name) for part in fields(value)}
        return _plain(parts.pop("extra", {}) | parts)
    match value:
        case dict():
            return {name: _plain(part) for name, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case datetime():
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value

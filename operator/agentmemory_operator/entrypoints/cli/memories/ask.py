"""The verbs that ask the retrieval API: search, remember, forget and receipts."""

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from agentmemory_operator.entrypoints.cli.composition import Asking, Inspection
from agentmemory_operator.entrypoints.cli.options import Context, TableJsonOrYaml, print_document, take_options
from agentmemory_operator.entrypoints.cli.run import Yes, check_answerable, confirm, run_verb
from agentmemory_operator.entrypoints.cli.tables import Section, show
from agentmemory_operator.runtime.cache import AGENT_MEMORY

if TYPE_CHECKING:
    # Half a second that the other verbs need not wait.
    from agentmemory_client import AsyncAgent, Preview, Receipt, ReceiptsPage, SearchResult, Stored

    Call = Callable[[AsyncAgent], Coroutine[Any, Any, Any]]
    """What a verb asks of an agent."""

FORGET = "Erase them permanently, including copies and anything stored in the meantime?"


class TagsMatch(StrEnum):
    """How many of the tags a memory has to carry."""

    ANY = "any"
    ALL = "all"


Name = Annotated[str, typer.Argument(help="Of the AgentMemory; without -n and --context the agent's name in the API.")]
User = Annotated[str, typer.Option("--user", help="Whose memories.")]
Namespace = Annotated[str | None, typer.Option("-n", "--namespace", help="Of the AgentMemory, which is then read.")]
Url = Annotated[str | None, typer.Option("--url", help="Of the API. Default: AGENTMEMORY_URL.")]
Token = Annotated[str | None, typer.Option("--token", help="For the API. Default: AGENTMEMORY_TOKEN.")]
Output = Annotated[TableJsonOrYaml, typer.Option("-o", "--output", help="For people, or for programs.")]


@dataclass(frozen=True, slots=True)
class AskedApi:
    """The retrieval API that is asked, and the objects that say what an agent is called there."""

    asking: Asking
    inspection: Inspection

    @asynccontextmanager
    async def of(
        self, name: str, namespace: str | None, context: str | None, url: str | None, token: str | None
    ) -> "AsyncIterator[AsyncAgent]":
        """Yield the agent in the API: by the name itself, or by that of the object where one is to be read.

        Args:
            namespace, context: of the object; none is read where both are None.
            url, token: None is what the environment says.
        """
        agent = name if namespace is None and context is None else await self._agent_of(name, namespace, context)
        async with self.asking.open_client(url or self.asking.url, token or self.asking.token) as client:
            yield client.agent(agent)

    async def _agent_of(self, name: str, namespace: str | None, context: str | None) -> str:
        async with self.inspection.open_objects(context, None) as (reader, default):
            document = await reader.read_object(AGENT_MEMORY, namespace or default, name)
        return str(document["spec"].get("agent") or name)


def add_asking(cli: typer.Typer, asking: Asking, inspection: Inspection) -> None:
    """Add the verbs to the command line."""
    api = AskedApi(asking, inspection)
    _add_verb(cli, search, _Way(api, _found_section))
    _add_verb(cli, remember, _Way(api, _stored_section))
    _add_verb(cli, forget, _Way(api, _forgotten_section))
    _add_verb(cli, receipts, _Way(api, _receipts_section))


def search(  # noqa: PLR0913 # each is an option
    query: Annotated[str, typer.Argument(help="What to look for.")],
    user: User,
    type_: Annotated[list[str] | None, typer.Option("--type", help="Only this type; repeated, any of them.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only with this tag; repeated, with any of them.")] = None,
    tags_match: Annotated[TagsMatch | None, typer.Option(help="all: with every --tag. Default: any.")] = None,
    filters: Annotated[str | None, typer.Option(help="Conditions, as JSON: docs/filters.md.")] = None,
    top_k: Annotated[int | None, typer.Option(help="How many at most. Default: the object's limit.")] = None,
) -> "Call":
    """Search an agent's memories of a user, ranked as the object declares."""
    options = _given({"types": type_, "tags": tag, "filters": _filters_of(filters), "top_k": top_k})
    options |= _given({"tags_match": tags_match and tags_match.value})
    return lambda agent: agent.user(user).search(query, **options)


def remember(  # noqa: PLR0913 # each is an option
    text: Annotated[str, typer.Argument(help="What to remember.")],
    user: User,
    type_: Annotated[str | None, typer.Option("--type", help="One of the agent's types.")] = None,
    importance: Annotated[float | None, typer.Option(help="0..1.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A label; repeatable.")] = None,
    supersedes: Annotated[str | None, typer.Option(help="Id of the memory that this one replaces.")] = None,
    zone: Annotated[str | None, typer.Option(help="How it is sealed: SENSITIVE, PERSONAL or PROFESSIONAL.")] = None,
) -> "Call":
    """Store a memory of a user, durably."""
    options = _given({"type": type_, "importance": importance, "tags": tag, "supersedes": supersedes, "zone": zone})
    return lambda agent: agent.user(user).add(text, **options)


def forget(  # noqa: PLR0913 # each is an option
    user: Annotated[
        str | None, typer.Option("--user", help="Whose memories. Left out for the key of an organisation alone.")
    ] = None,
    filters: Annotated[str | None, typer.Option(help="Only what meets these conditions, as JSON.")] = None,
    older_than: Annotated[str | None, typer.Option(help="Only what was created before this time, RFC 3339.")] = None,
    zone: Annotated[str | None, typer.Option(help="With --crypto: only what is sealed so.")] = None,
    *,
    crypto: Annotated[
        bool, typer.Option("--crypto", help="Delete the keys first: every copy is unreadable from then on.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be erased, and erase nothing.")] = False,
    yes: Yes = False,
) -> "Call":
    """Erase a user's memories for good, in copies too; without --filters and --older-than everything of the user."""
    options = _given({"filters": _filters_of(filters), "older_than": older_than, "zone": zone})
    options |= {"crypto": True} if crypto else {}
    if dry_run:
        return lambda agent: agent.would_forget(user, **options)
    check_answerable(FORGET, yes=yes)

    async def erase(agent: "AsyncAgent") -> "Receipt":
        if not yes:
            show([_forgotten_section(await agent.would_forget(user, **options))], Console(stderr=True))
        # What was stored since the counts were taken goes too.
        confirm(FORGET, yes=yes, err=True)
        return await agent.forget(user, **options)

    return erase


def receipts(
    user: Annotated[str | None, typer.Option("--user", help="Only those of this user.")] = None,
) -> "Call":
    """List what was erased of an agent's memories, and when."""
    options = _given({"user_id": user})

    async def read(agent: "AsyncAgent") -> "ReceiptsPage":
        from agentmemory_client import ReceiptsPage  # see above

        return ReceiptsPage(results=tuple([receipt async for receipt in agent.receipts(**options)]))

    return read


@dataclass(frozen=True, slots=True)
class _Way:
    """How a verb asks, and how its answer is shown."""

    api: AskedApi
    section: Callable[[Any], Section]


def _add_verb(cli: typer.Typer, choose: "Callable[..., Call]", way: _Way) -> None:
    """Add a verb: the options of what it asks, which `choose` takes, and those of whom it asks."""

    def command(  # each is an option
        *,
        name: Name,
        namespace: Namespace = None,
        context: Context = None,
        url: Url = None,
        token: Token = None,
        output: Output = TableJsonOrYaml.TABLE,
        **chosen: Any,
    ) -> None:
        call = choose(**chosen)

        async def ask() -> Any:
            async with way.api.of(name, namespace, context, url, token) as agent:
                return await call(agent)

        _print(run_verb(ask()), way.section, output)

    # As a command line shows them: the name, what is asked, whom.
    take_options(command, choose, after=1)
    cli.command(choose.__name__, help=choose.__doc__)(command)


def _filters_of(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--filters is not JSON: {error}") from error


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and value != []}


def _print(answer: Any, section: Callable[[Any], Section], output: TableJsonOrYaml) -> None:
    document = _plain(answer)
    if output is TableJsonOrYaml.TABLE:
        show([section(answer)], Console())
    else:
        print_document(document, output)


def _found_section(answer: "SearchResult") -> Section:
    rows = tuple(
        (f"{found.score:.3f}", found.type, f"{found.created_at:%Y-%m-%d}", _shown(found.content), found.id)
        for found in answer.results
    )
    heading = f"{len(rows)} of {answer.total_candidates} memories, by generation {answer.generation}"
    columns = ("SCORE", "TYPE", "CREATED", "CONTENT", "ID") if rows else ()
    return Section(heading, columns=columns, rows=rows, notes=answer.warnings)


def _shown(content: str | None) -> str:
    """A content in one line."""
    return "(locked: its key is unavailable or deleted)" if content is None else " ".join(content.split())


def _stored_section(answer: "Stored") -> Section:
    replaced = f", replacing {answer.supersedes}" if answer.supersedes else ""
    return Section(f"{answer.event} {answer.id}{replaced}", notes=answer.warnings)


def _receipt_section(answer: "Receipt") -> Section:
    columns, rows = _types_of(answer.counts)
    heading = f"erased {answer.counts['total']} memories, receipt {answer.id}"
    notes = (f"keys of {', '.join(answer.keys_deleted)} destroyed",) if answer.keys_deleted else ()
    return Section(heading, columns=columns, rows=rows, notes=notes)


def _forgotten_section(answer: "Receipt | Preview") -> Section:
    from agentmemory_client import Receipt  # see above

    if isinstance(answer, Receipt):
        return _receipt_section(answer)
    columns, rows = _types_of(answer.counts)
    notes = (*answer.ids, *([f"and {answer.more} more"] if answer.more else []))
    heading = f"would erase {answer.counts['total']} memories; nothing was changed"
    return Section(heading, columns=columns, rows=rows, notes=notes)


def _types_of(counts: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    rows = tuple((name, str(count)) for name, count in counts["types"].items())
    return (("TYPE", "MEMORIES") if rows else ()), rows


def _receipts_section(answer: "ReceiptsPage") -> Section:
    rows = tuple(
        (_plain(receipt.at), receipt.scope or "", str(receipt.counts["total"]), receipt.id, receipt.sha256)
        for receipt in answer.results
    )
    columns = ("AT", "SCOPE", "MEMORIES", "RECEIPT", "SHA-256") if rows else ()
    return Section(f"{len(rows)} receipts", columns=columns, rows=rows)


def _plain(value: Any) -> Any:
    """The value of JSON and YAML alone; what a newer API says beside stands where the API has it."""
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

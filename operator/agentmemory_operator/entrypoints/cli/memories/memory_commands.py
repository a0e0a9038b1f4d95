"""Commands that call the retrieval API: search, remember, forget and receipts."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

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
from agentmemory_operator.entrypoints.cli.memories.search_view import result_section
from agentmemory_operator.entrypoints.cli.run import Yes, check_answerable, confirm
from agentmemory_operator.entrypoints.cli.tables import Section, show
from agentmemory_operator.runtime.rules.json_keys import reject_repeated_keys

if TYPE_CHECKING:
    # The import takes half a second, which other commands should not wait for.
    from agentmemory_client import AgentDetails, AsyncAgent, Preview, Receipt, ReceiptsPage, SearchResult, Stored
    from agentmemory_operator.entrypoints.cli.memories.api_commands import Call

FORGET = "Erase them permanently, including copies and anything stored in the meantime?"


def add_memory_commands(cli: typer.Typer, access: ApiAccess, inspection: QdrantAccess) -> None:
    """Add `search`, `remember`, `forget` and `receipts` to a command line.

    Args:
        access: Access to the retrieval API.
        inspection: Access to the AgentMemory objects, from which names of agents are read.
    """
    api = ApiTarget(access, inspection)
    add_api_verb(cli, search, ApiCommand(api, _search_section, _search_document))
    add_api_verb(cli, remember, ApiCommand(api, _stored_section))
    add_api_verb(cli, forget, ApiCommand(api, _forgotten_section))
    add_api_verb(cli, receipts, ApiCommand(api, _receipts_section))


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
    reference_time: Annotated[
        str | None, typer.Option(help="Time that words such as yesterday in the query refer to. Default: now.")
    ] = None,
    time_zone: Annotated[str | None, typer.Option(help="IANA zone of the days in the query. Default: UTC.")] = None,
    per_session: Annotated[int | None, typer.Option(help="Maximum number of results of one session.")] = None,
    *,
    explain: Annotated[bool, typer.Option("--explain", help="Show the calculation of each score.")] = False,
) -> "Call":
    """Search a user's memories, ranked by the AgentMemory's settings."""
    narrowing = {"types": type_, "tags": tag, "tags_match": tags_match and tags_match.value, "session_id": session}
    limits = {"top_k": top_k, "threshold": threshold, "min_similarity": min_similarity}
    times = {"reference_time": reference_time, "time_zone": time_zone}
    diversity = None if per_session is None else {"per_session": per_session}
    others = {"diversity": diversity, "filters": _filters_of(filters), "explain": explain or None}
    options = given_options({**narrowing, **limits, **times, **others})

    async def ask(agent: "AsyncAgent") -> "tuple[SearchResult, AgentDetails | None]":
        result = await agent.user(user).search(query, **options)
        # `formula_of` needs the agent's weights, which the response to a search lacks.
        return result, await agent.info() if explain else None

    return ask


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
    options = given_options(
        {"type": type_, "importance": _importance_of(importance), "tags": tag, "supersedes": supersedes, "zone": zone}
    )
    return lambda agent: agent.user(user).add(text, **options)


def forget(  # noqa: PLR0913 # each is an option
    user: Annotated[
        str | None,
        typer.Option("--user", help="User whose memories to erase; omit it to delete only an organisation's key."),
    ] = None,
    filters: Annotated[str | None, typer.Option(help="Erase only memories that match these filters (JSON).")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Erase only memories created before this RFC 3339 time.")
    ] = None,
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
    conditions = given_options({"filters": _filters_of(filters), "older_than": older_than, "zone": zone})
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
    """Raise typer.BadParameter unless there are either non-empty conditions, or --everything with --user."""
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
    options = given_options({"user_id": user})

    async def read(agent: "AsyncAgent") -> "ReceiptsPage":
        from agentmemory_client import ReceiptsPage  # slow: see the imports of this module

        return ReceiptsPage(results=tuple([receipt async for receipt in agent.receipts(**options)]))

    return read


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
    """Return a number as float, and None and other texts unchanged, for example `high`: the API checks them."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _search_section(answer: "tuple[SearchResult, AgentDetails | None]") -> Section:
    return result_section(*answer)


def _search_document(answer: "tuple[SearchResult, AgentDetails | None]") -> Any:
    return to_json_types(answer[0])


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
        (receipt.id, to_json_types(receipt.at), receipt.scope or "", str(receipt.counts["total"]), receipt.sha256)
        for receipt in page.results
    )
    columns = ("RECEIPT", "AT", "SCOPE", "MEMORIES", "SHA-256") if rows else ()
    return Section(f"{len(rows)} receipts", columns=columns, rows=rows, cut="SHA-256")

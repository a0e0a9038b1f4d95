"""Shared parts of commands that call the retrieval API: its options, the client, and the output of a response."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from agentmemory_operator.entrypoints.cli.composition import ApiAccess, QdrantAccess
from agentmemory_operator.entrypoints.cli.options import (
    Context,
    TableJsonOrYaml,
    print_document,
    refuse_empty_values,
    take_options,
)
from agentmemory_operator.entrypoints.cli.run import run_command
from agentmemory_operator.entrypoints.cli.stacks import Stacks, read_stacks
from agentmemory_operator.entrypoints.cli.tables import Section, show
from agentmemory_operator.runtime.object_table import AGENT_MEMORY

if TYPE_CHECKING:
    # The import takes half a second, which other commands should not wait for.
    from agentmemory_client import AsyncAgent, AsyncClient

    Call = Callable[[AsyncAgent], Coroutine[Any, Any, Any]]
    """Sends the request of a command to an agent."""


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


class TagsMatch(StrEnum):
    """Match modes for the given tags: a memory must have any or all of them."""

    ANY = "any"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options that select the API.

    Attributes:
        url, token: None uses the environment's value. Without a URL there, `Stacks.find_api` selects the API.
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
            name: Name of the agent. With a namespace or context, name of the AgentMemory; the agent is then the one in
                its `spec.agent`, by default of the same name.

        Raises:
            AgentMemoryError: If the options do not determine the API, the object cannot be read, or a request to the
                API fails inside the block.
        """
        async with self.open_client(name, options) as (client, agent):
            yield client.agent(agent)

    @asynccontextmanager
    async def open_client(self, name: str, options: "ServerOptions") -> "AsyncIterator[tuple[AsyncClient, str]]":
        """Yield a client, and the name of the agent in the API. Args and Raises: As for `open_agent`."""
        url, stack = options.stacks.find_api(options.url or self.access.url, options.context)
        agent = name
        if options.namespace is not None or options.context is not None:
            agent = await self._agent_of(name, options, stack.manifests if stack else None)
        async with self.access.open_client(url, options.token or self.access.token) as client:
            yield client, agent

    async def _agent_of(self, name: str, options: "ServerOptions", manifests: Path | None) -> str:
        async with self.inspection.open_objects(options.context, manifests) as (reader, default):
            document = await reader.read_object(AGENT_MEMORY, options.namespace or default, name)
        return str(document["spec"].get("agent") or name)


def to_json_types(value: Any) -> Any:
    """Convert a response to JSON types. Unknown fields, which a newer API may send, are kept."""
    if is_dataclass(value):
        parts = {part.name: getattr(value, part.name) for part in fields(value)}
        return to_json_types(parts.pop("extra", {}) | parts)
    match value:
        case dict():
            return {name: to_json_types(part) for name, part in value.items()}
        case list() | tuple():
            return [to_json_types(part) for part in value]
        case datetime():
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


@dataclass(frozen=True, slots=True)
class ApiCommand:
    """The API that a command calls, and the functions that render its response: as a table, and for JSON or YAML."""

    api: ApiTarget
    section: Callable[[Any], Section]
    document: Callable[[Any], Any] = to_json_types


def add_api_verb(cli: typer.Typer, choose: "Callable[..., Call]", api_command: ApiCommand) -> None:
    """Add a command with the options of `choose`, which builds the request, and the options that select the API.

    The command has the name of `choose`, without an underscore at its end.
    """

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

        response = run_command(ask())
        if output is TableJsonOrYaml.TABLE:
            show([api_command.section(response)], Console())
        else:
            print_document(api_command.document(response), output)

    # Order of the parameters: name, those of the request, those that select the API.
    take_options(command, choose, after=2)
    cli.command(choose.__name__.rstrip("_"), help=choose.__doc__)(command)


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given: those that are neither None nor an empty list."""
    return {name: value for name, value in options.items() if value is not None and value != []}

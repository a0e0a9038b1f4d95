"""Command `mcp`: serve the Model Context Protocol (MCP) on standard input and output, for hosts that start a program.

Only the protocol is written to standard output. Everything else, such as log lines, goes to standard error.
"""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated

import typer

from agentmemory_operator.entrypoints.cli.composition import ApiAccess, QdrantAccess
from agentmemory_operator.entrypoints.cli.mcp_bridge import McpBridge, read_lines
from agentmemory_operator.entrypoints.cli.memories.api_commands import (
    ApiTarget,
    Name,
    Namespace,
    ServerOptions,
    Token,
    Url,
)
from agentmemory_operator.entrypoints.cli.options import Context, refuse_empty_values
from agentmemory_operator.entrypoints.cli.run import run_command
from agentmemory_operator.entrypoints.cli.stacks import read_stacks

# Prefix of user tokens, which name their user (docs/access.md).
USER_TOKEN_PREFIX = "amu_"
STDIN, STDOUT, STDERR = 0, 1, 2


def add_mcp(cli: typer.Typer, access: ApiAccess, inspection: QdrantAccess) -> None:
    """Add `mcp` to a command line."""

    @cli.command()
    def mcp(  # noqa: PLR0913 # each is an option
        ctx: typer.Context,
        name: Name,
        user: Annotated[
            str | None, typer.Option("--user", help="User who owns the memories; a user token names its own.")
        ] = None,
        time_zone: Annotated[str | None, typer.Option(help="IANA zone of the days in queries. Default: UTC.")] = None,
        namespace: Namespace = None,
        context: Context = None,
        url: Url = None,
        token: Token = None,
    ) -> None:
        """Serve the memories of a user to an MCP host on standard input and output, by calling the API."""
        refuse_empty_values(ctx)
        if user is None and not (token or access.token or "").startswith(USER_TOKEN_PREFIX):
            raise typer.BadParameter("--user is missing: without a user, or a user token, the model would choose one")
        options = ServerOptions(stacks=read_stacks(ctx), namespace=namespace, context=context, url=url, token=token)
        if sys.stdin is not None and sys.stdin.isatty():
            typer.echo(
                "agentmemory: waiting for MCP messages, one a line; usually a host starts this command", err=True
            )
        headers = {"X-AgentMemory-Timezone": time_zone} if time_zone else {}
        run_command(_serve(ApiTarget(access, inspection), name, options, {"user_id": user} if user else {}, headers))


async def _serve(
    target: ApiTarget, name: str, options: ServerOptions, user: Mapping[str, str], headers: Mapping[str, str]
) -> None:
    async with target.open_client(name, options) as (client, agent):
        bridge = McpBridge(client, {"agent": agent, **user}, headers, _take_standard_output())
        await bridge.serve(read_lines(STDIN))


def _take_standard_output() -> Callable[[bytes], None]:
    """Return a function that writes a line to standard output; anything else that is printed goes to standard error."""
    output = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)

    def write(line: bytes) -> None:
        rest = memoryview(line + b"\n")
        # A host that has closed the pipe ends this process by closing standard input too.
        with suppress(BrokenPipeError):
            while rest:
                rest = rest[os.write(output, rest) :]

    return write

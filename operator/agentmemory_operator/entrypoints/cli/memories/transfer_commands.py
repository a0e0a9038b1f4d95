"""The commands export and import: copy a user's memories to a file, and from one."""

import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal

from agentmemory_operator.adapters.folder.atomic_files import open_replacement
from agentmemory_operator.entrypoints.cli.composition import ApiAccess, QdrantAccess
from agentmemory_operator.entrypoints.cli.job_progress import JobProgress
from agentmemory_operator.entrypoints.cli.memories.api_commands import (
    ApiTarget,
    Name,
    Namespace,
    ServerOptions,
    Token,
    Url,
    User,
)
from agentmemory_operator.entrypoints.cli.options import Context, refuse_empty_values
from agentmemory_operator.entrypoints.cli.run import run_command
from agentmemory_operator.entrypoints.cli.stacks import read_stacks

if TYPE_CHECKING:
    from agentmemory_client import Imported

PROGRESS_PERIOD_S = 1.0
CHUNK_BYTES = 256 << 10


def add_transferring(cli: typer.Typer, access: ApiAccess, inspection: QdrantAccess) -> None:
    """Add `export` and `import` to a command line."""
    api = ApiTarget(access, inspection)
    _add_export(cli, api)
    _add_import(cli, api)


def _add_export(cli: typer.Typer, api: ApiTarget) -> None:
    @cli.command("export")
    def export(  # noqa: PLR0913 # each is an option
        ctx: typer.Context,
        name: Name,
        user: User,
        file: Annotated[
            Path | None,
            typer.Option("-o", "--output", help="Output file, replaced when complete. Default: standard output."),
        ] = None,
        *,
        vectors: Annotated[bool, typer.Option("--vectors", help="Include the vectors.")] = False,
        plain: Annotated[
            bool, typer.Option("--plain", help="Include encrypted memories in plain text; needs the admin verb.")
        ] = False,
        namespace: Namespace = None,
        context: Context = None,
        url: Url = None,
        token: Token = None,
    ) -> None:
        """Export all memories of a user as JSON lines."""
        refuse_empty_values(ctx)
        options = ServerOptions(stacks=read_stacks(ctx), namespace=namespace, context=context, url=url, token=token)

        async def work() -> int:
            async with api.open_agent(name, options) as agent:
                return await _export(file, agent.user(user).export(vectors=vectors, plain=plain), name)

        typer.echo(f"exported {run_command(work())} memories", err=True)


def _add_import(cli: typer.Typer, api: ApiTarget) -> None:
    @cli.command("import")
    def import_(  # noqa: PLR0913 # each is an option
        ctx: typer.Context,
        name: Name,
        user: User,
        file: Annotated[Path, typer.Option("-f", "--file", exists=True, dir_okay=False, help="Export file to import.")],
        *,
        include_erased: Annotated[
            bool, typer.Option("--include-erased", help="Also import memories that were erased.")
        ] = False,
        namespace: Namespace = None,
        context: Context = None,
        url: Url = None,
        token: Token = None,
    ) -> None:
        """Import exported memories for a user; memories that already exist stay unchanged."""
        refuse_empty_values(ctx)
        options = ServerOptions(stacks=read_stacks(ctx), namespace=namespace, context=context, url=url, token=token)

        async def work() -> "Imported":
            async with api.open_agent(name, options) as agent:
                with JobProgress(f"{file} to {name}") as progress, file.open("rb") as content:
                    lines = _read_chunks(content, progress)
                    return await agent.user(user).import_memories(lines, include_erased=include_erased)

        _print_result(run_command(work()))


async def _export(file: Path | None, lines: AsyncIterator[dict[str, Any]], agent: str) -> int:
    """Write the lines to a file that is replaced when complete (None: to standard output); return their number."""
    if file is None:
        return await _write(sys.stdout.buffer, lines, agent)
    with open_replacement(file) as draft:
        return await _write(draft, lines, agent)


async def _write(out: IO[bytes], lines: AsyncIterator[dict[str, Any]], agent: str) -> int:
    count, reported_s = 0, time.monotonic()
    with JobProgress(f"memories of {agent}", has_bar=not out.isatty()) as progress:
        async for line in lines:
            out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
            count += 1
            if time.monotonic() - reported_s > PROGRESS_PERIOD_S:
                # Flush before the progress is shown, because both streams are visible on a terminal.
                out.flush()
                progress.advance(f"{count} memories")
                reported_s = time.monotonic()
    out.flush()
    return count


def _read_chunks(content: IO[bytes], progress: JobProgress) -> Iterator[bytes]:
    """Yield the content of a file and show the progress. The API reads more only after it has imported a batch."""
    total_bytes, sent_bytes, reported_s = os.fstat(content.fileno()).st_size, 0, time.monotonic()
    while chunk := content.read(CHUNK_BYTES):
        yield chunk
        sent_bytes += len(chunk)
        if time.monotonic() - reported_s > PROGRESS_PERIOD_S:
            progress.advance(f"{decimal(sent_bytes)} of {decimal(total_bytes)}", sent_bytes, total_bytes)
            reported_s = time.monotonic()


def _print_result(result: "Imported") -> None:
    """Print the result of an import; exit with status 1 if a line failed."""
    typer.echo(
        f"{result.lines} lines: {result.imported} imported, {result.present} there already, {result.failed} failed"
    )
    for item in result.errors:
        typer.echo(f"line {item.line}: {_reason(item.error)}", err=True)
    if result.more_errors:
        typer.echo(f"and {result.more_errors} more", err=True)
    if result.failed:
        raise typer.Exit(1)


def _reason(error: Any) -> str:
    return "; ".join(f"{part.field}: {part.message}" for part in error.errors) or str(error.detail)

"""The verbs that look and change nothing: plan."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.domain.resources import AgentMemory
from agentmemory_operator.entrypoints.plans import exit_status, plan_document, plan_sections
from agentmemory_operator.entrypoints.running import run_verb
from agentmemory_operator.entrypoints.tables import show
from agentmemory_operator.entrypoints.validation import documents_in, findings_in, manifest_files
from agentmemory_operator.ports import CollectionStore
from agentmemory_operator.services.preview import Preview, previews_of


@dataclass(frozen=True, slots=True)
class Inspection:
    """What main composes for the verbs that only look.

    Attributes:
        open_store: opens the collections of the server at a URL, with the key of the environment.
        qdrant_url: the server that the environment names.
    """

    open_store: Callable[[str], AbstractAsyncContextManager[CollectionStore]]
    qdrant_url: str | None


class TableOrJson(StrEnum):
    """How the answer is printed."""

    TABLE = "table"
    JSON = "json"


Files = Annotated[list[Path], typer.Option("-f", "--filename", help="A manifest, or a folder of them.")]
QdrantUrl = Annotated[str | None, typer.Option("--qdrant", help="URL of the server. Default: QDRANT_URL.")]
Output = Annotated[TableOrJson, typer.Option("-o", "--output", help="For people, or for programs.")]


def add_inspection(cli: typer.Typer, inspection: Inspection) -> None:
    """Add the verbs to the command line."""
    _add_plan(cli, inspection)


def _add_plan(cli: typer.Typer, inspection: Inspection) -> None:
    @cli.command()
    def plan(
        paths: Files,
        qdrant: QdrantUrl = None,
        namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of manifests that name none.")] = "default",
        output: Output = TableOrJson.TABLE,
    ) -> None:
        """Show what applying manifests would do to a Qdrant, an empty one if none is named; change nothing.

        Exit status: 0 nothing to do, 2 changes, 3 something held or refused, 1 an error.
        """
        url = (qdrant or inspection.qdrant_url or "").rstrip("/") or None
        memories = _memories_in(paths, namespace)
        previews = run_verb(_previews(memories, inspection.open_store(url) if url else nullcontext()))
        if output is TableOrJson.JSON:
            print_json(plan_document(previews, url))
        else:
            show(plan_sections(previews, url), Console())
        raise typer.Exit(exit_status(previews))


async def _previews(
    memories: list[AgentMemory], opening: AbstractAsyncContextManager[CollectionStore | None]
) -> list[Preview]:
    async with opening as store:
        return [preview async for preview in previews_of(memories, store)]


def _memories_in(paths: list[Path], namespace: str) -> list[AgentMemory]:
    """Return the AgentMemories of the files; what is wrong is told as `validate` tells it, with exit status 1."""
    try:
        files = list(manifest_files(paths))
        findings = [finding for file in files for finding in findings_in(file)]
    except OSError as exc:
        typer.echo(f"agentmemory: {exc}", err=True)
        raise typer.Exit(1) from exc
    for finding in findings:
        typer.echo(str(finding), err=True)
    if findings:
        raise typer.Exit(1)
    documents = [document for file in files for document in documents_in(file) if is_agent_memory(document)]
    return [parse_agent_memory(placed(document, namespace)) for document in documents]


def is_agent_memory(document: dict[str, Any]) -> bool:
    """Tell whether a valid document is an AgentMemory of ours."""
    return document.get("kind") == "AgentMemory" and str(document.get("apiVersion", "")).startswith("agentmemory.dev/")


def placed(document: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Return the document in its namespace, or in the given one where it names none."""
    metadata = document["metadata"]
    return document | {"metadata": metadata | {"namespace": metadata.get("namespace") or namespace}}


def print_json(document: Any) -> None:
    """Print a document for programs."""
    typer.echo(json.dumps(document, indent=2))

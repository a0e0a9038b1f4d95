"""Options that several verbs have, and how they print for programs."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

# Where `dev` keeps memories, and whose they are.
DATA = Path(".agentmemory")


class TableOrJson(StrEnum):
    """How the answer is printed."""

    TABLE = "table"
    JSON = "json"


class TableJsonOrYaml(StrEnum):
    """How the answer is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Files = Annotated[
    list[Path],
    typer.Option("-f", "--filename", help="A manifest, a folder of them, or - for standard input; repeatable."),
]
Recursive = Annotated[bool, typer.Option("-R", "--recursive", help="Look into the folders of a folder too.")]
Output = Annotated[TableOrJson, typer.Option("-o", "--output", help="For people, or for programs.")]
Context = Annotated[str | None, typer.Option("--context", help="Of the kubeconfig. Default: the current one.")]
Namespace = Annotated[str | None, typer.Option("-n", "--namespace", help="Default: the context's.")]
Manifests = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, help="The folder that `agentmemory dev` watches, for a cluster's."),
]
ReachedAt = Annotated[str | None, typer.Option("--qdrant", help="URL of the server, where its own is out of reach.")]


def print_json(document: Any) -> None:
    """Print a document for programs."""
    typer.echo(json.dumps(document, indent=2))

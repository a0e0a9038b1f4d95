"""Options that several commands share, and output for programs."""

import json
from collections.abc import Callable
from enum import StrEnum
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from agentmemory_operator.spec.kubectl_yaml import dump_yaml

# Default data folder of `dev` if --manifests is given.
DATA = Path(".agentmemory")


class TableOrJson(StrEnum):
    """Output formats of commands that report findings."""

    TABLE = "table"
    JSON = "json"


class TableJsonOrYaml(StrEnum):
    """Output formats of commands that show an object or a response of the API."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Files = Annotated[
    list[Path],
    typer.Option("-f", "--filename", help="Manifest file, folder of manifests, or - for standard input; repeatable."),
]
Recursive = Annotated[bool, typer.Option("-R", "--recursive", help="Read subfolders too.")]
Output = Annotated[TableOrJson, typer.Option("-o", "--output", help="Output format.")]
Context = Annotated[str | None, typer.Option("--context", help="kubeconfig context. Default: the current one.")]
Namespace = Annotated[
    str | None, typer.Option("-n", "--namespace", help="Namespace of the object. Default: the context's.")
]
Manifests = Annotated[
    Path | None, typer.Option(exists=True, file_okay=False, help="Folder of `agentmemory dev`, in place of a cluster.")
]
QdrantUrl = Annotated[str | None, typer.Option("--qdrant", help="URL of Qdrant, if the connection's is not reachable.")]


def take_options(command: Callable[..., None], source: Callable[..., Any], *, after: int = 0) -> None:
    """Add the parameters of another callable to those of a command, in place of its last one, `**keywords`.

    Args:
        source: A function, or a dataclass with the options as fields.
        after: Number of the command's own parameters that precede the added ones.
    """
    *command_parameters, _ = signature(command).parameters.values()
    added = [part.replace(kind=Parameter.KEYWORD_ONLY) for part in signature(source).parameters.values()]
    parameters = [*command_parameters[:after], *added, *command_parameters[after:]]
    command.__annotations__ = {part.name: part.annotation for part in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # `inspect.signature` prefers this attribute


def refuse_empty_values(ctx: typer.Context) -> None:
    """Raise for an empty value, as from an unset shell variable, which would otherwise select the default.

    Raises:
        typer.BadParameter: If a value is empty and its default is not. The message names the option.
    """
    for option in ctx.command.params:
        if ctx.params.get(option.name or "") == "" != option.default:
            raise typer.BadParameter(f"{option.opts[-1]} is empty: give a value, or leave it out")


def print_document(document: Any, output: TableJsonOrYaml) -> None:
    """Print a document as JSON, or for any other output format as YAML."""
    if output is TableJsonOrYaml.JSON:
        print_json(document)
    else:
        typer.echo(dump_yaml(document, width=120, allow_unicode=True), nl=False)


def print_json(document: Any) -> None:
    """Print a document as JSON, indented by two spaces."""
    typer.echo(json.dumps(document, indent=2))

"""Shell completion without importing the commands: options and values come from a generated table.

`make completions` writes the table. A test compares it with the commands.
"""

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

TABLE = Path(__file__).with_name("completions.json")


class CompletionCommands(Mapping[str, Any]):
    """The commands by name, with the options and values that completion needs. Running one does nothing."""

    def __init__(self) -> None:
        self._rows: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))

    def __getitem__(self, name: str) -> Any:
        return get_command(_listed(name, self._rows[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def render_table(verbs: Mapping[str, Any]) -> str:
    """Render the content of `completions.json` from the commands by name."""
    return json.dumps({name: _row(verb) for name, verb in verbs.items()}, indent=1) + "\n"


def _row(verb: Any) -> dict[str, Any]:
    """Return the table row of a command or of a group."""
    row = {"help": verb.help}
    if commands := getattr(verb, "commands", None):
        return row | {"commands": {name: _row(command) for name, command in commands.items()}}
    return row | {"parameters": [_parameter_row(parameter) for parameter in verb.params]}


def _parameter_row(parameter: Any) -> dict[str, Any]:
    annotation = parameter.type_descriptor.annotation
    is_choice = isinstance(annotation, type) and issubclass(annotation, Enum)
    row = {
        "names": parameter.opts if parameter.param_type_name == "option" else [],
        "help": parameter.help,
        "is_flag": getattr(parameter, "is_flag", False),
        "is_many": getattr(parameter, "multiple", False),
        "choices": [choice.value for choice in annotation] if is_choice else [],
    }
    return {name: value for name, value in row.items() if value}


def _listed(name: str, row: dict[str, Any]) -> typer.Typer:
    """Build a command line with one command, or with those of a group."""
    app = typer.Typer(name=name, help=row["help"], add_completion=False)
    for command, part in row.get("commands", {name: row}).items():
        app.command(command, help=part["help"], short_help=part["help"])(_taking(part["parameters"]))
    if "commands" in row:
        app.callback()(lambda: None)
    return app


def _taking(rows: list[dict[str, Any]]) -> Any:
    """Build a function with the parameters of a command, which does nothing."""

    def nothing(**_: object) -> None:
        """Do nothing."""

    nothing.__signature__ = Signature([_parameter(f"p{number}", row) for number, row in enumerate(rows)])  # type: ignore[attr-defined]
    return nothing


def _parameter(name: str, row: dict[str, Any]) -> Parameter:
    info = typer.Option(*row["names"], help=row.get("help")) if "names" in row else typer.Argument(help=row.get("help"))
    kind = _kind(row)
    default = False if kind is bool else None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _kind(row: dict[str, Any]) -> Any:
    if row.get("is_flag"):
        return bool
    if choices := row.get("choices"):
        return Enum("Choice", [(choice, choice) for choice in choices], type=str)
    return list[str] if row.get("is_many") else str

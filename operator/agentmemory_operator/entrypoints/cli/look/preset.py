"""`agentmemory preset`: list the presets, or print one with all its settings."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

from agentmemory_operator.controllers.rules.preset_manifest import expand_preset, fixed_figures
from agentmemory_operator.entrypoints.cli.tables import Section, show
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.kubectl_yaml import dump_yaml
from agentmemory_operator.spec.presets import PRESETS

WIDTH = 120
COMMENT = "The preset also sets these figures, which no field of an object repeats:"

PresetName = StrEnum("PresetName", {name.upper(): name for name in PRESETS})  # type: ignore[misc]


class SpecFormat(StrEnum):
    """Output format of an object."""

    YAML = "yaml"
    JSON = "json"


def add_presets(cli: typer.Typer) -> None:
    """Add the group `preset`, with `list` and `show`, to a command line."""
    preset = typer.Typer(help="List the presets, or print one.", no_args_is_help=True)

    @preset.command("list")
    def list_presets() -> None:
        """List the presets."""
        rows = tuple((name, revisions[-1].summary) for name, revisions in PRESETS.items())
        show([Section("", columns=("PRESET", "FOR"), rows=rows)], Console())

    @preset.command("show")
    def show_preset(
        name: Annotated[PresetName, typer.Argument(help="Name of the preset.")],
        output: Annotated[
            SpecFormat, typer.Option("-o", "--output", help="Output format: yaml or json.")
        ] = SpecFormat.YAML,
    ) -> None:
        """Print an AgentMemory with all settings of a preset; it is equivalent to naming the preset."""
        typer.echo(_rendered(manifest_of(name.value), output), nl=False)
        if output is SpecFormat.YAML:
            lines = [COMMENT, *_as_yaml(fixed_figures(name.value)).splitlines()]
            typer.echo("".join(f"# {line}\n" for line in lines), nl=False)

    cli.add_typer(preset, name="preset")


def manifest_of(preset: str) -> dict[str, Any]:
    """Build the manifest of an AgentMemory `my-PRESET` with all settings of the latest revision of the preset."""
    header = {"apiVersion": API_VERSION, "kind": "AgentMemory", "metadata": {"name": f"my-{preset}"}}
    return header | {"spec": expand_preset(preset)}


def _rendered(document: dict[str, Any], output: SpecFormat) -> str:
    if output is SpecFormat.JSON:
        return json.dumps(document, indent=2) + "\n"
    return _as_yaml(document)


def _as_yaml(document: dict[str, Any]) -> str:
    return dump_yaml(document, default_flow_style=None, width=WIDTH)

"""`agentmemory crds` and `schema`: print CRDs and the schema for editors; write `crds/` and the chart's copy."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from agentmemory_operator.spec.kinds.agent_memory import GROUP
from agentmemory_operator.spec.kinds.crds import KINDS, KindDefinition, editor_schema, render_crd
from agentmemory_operator.spec.kubectl_yaml import dump_yaml

FOLDERS = ("crds", "charts/agentmemory-operator/files/crds")
HEADER = "# Written by `make crds` from the models in spec/kinds; not by hand.\n"


def add_crds(cli: typer.Typer) -> None:
    """Add `crds` and `schema` to a command line."""

    @cli.command("crds")
    def print_crds(
        write: Annotated[bool, typer.Option("--write", help="Write files of the repository instead.")] = False,
    ) -> None:
        """Print the CustomResourceDefinitions."""
        raise typer.Exit(main(["--write"] if write else []))

    @cli.command()
    def schema() -> None:
        """Print the JSON Schema of the kinds, for editors."""
        typer.echo(json.dumps(editor_schema(), indent=2))


def render_yaml(kind: KindDefinition) -> str:
    """Render the CRD of a kind as YAML, with a header."""
    return HEADER + dump_yaml(render_crd(kind), width=120, allow_unicode=True)


def render_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield path and text of every file that `make crds` writes to the repository at `root`."""
    for kind in KINDS:
        text = render_yaml(kind)
        for folder in FOLDERS:
            yield root / folder / f"{GROUP}_{kind.plural}.yaml", text


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all CRDs, or with `--write` write them to the repository; return the exit status, which is always 0.

    Args:
        arguments: Command-line arguments; None uses those of the process.
    """
    parser = argparse.ArgumentParser(prog="agentmemory crds", description="Print the CRDs.")
    parser.add_argument("--write", action="store_true", help="write crds/ and the chart's copy instead")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository; default: the current folder")
    options = parser.parse_args(arguments)
    if not options.write:
        sys.stdout.write("---\n".join(map(render_yaml, KINDS)))
        return 0
    for path, text in render_files(options.root):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

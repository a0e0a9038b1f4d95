"""`agentmemory uninstall`: delete the CRDs with all objects, after saving a catalogue of the objects."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agentmemory_operator.adapters.folder.atomic_files import open_replacement
from agentmemory_operator.controllers.rules.uninstall_catalogue import Json, catalogue_entry, describe_deletion
from agentmemory_operator.controllers.uninstall import Installation, Uninstall, check_uninstallable, read_installation
from agentmemory_operator.entrypoints.cli.composition import OpenInstalled
from agentmemory_operator.entrypoints.cli.options import Context
from agentmemory_operator.entrypoints.cli.run import Yes, check_answerable, confirm, run_command
from agentmemory_operator.entrypoints.cli.tables import Section, show

QUESTION = "Delete every object and the definitions, in every namespace of this cluster?"
COLUMNS = ("KIND", "OBJECTS", "EFFECT")


def add_uninstall(cli: typer.Typer, open_installed: OpenInstalled) -> None:
    """Add `uninstall` to a command line."""

    @cli.command()
    def uninstall(
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Show what would be deleted, and save the catalogue.")
        ] = (False),
        catalogue: Annotated[
            Path | None,
            typer.Option(
                dir_okay=False, help="Catalogue file, which must not exist. Default: agentmemory-catalogue-TIME.json."
            ),
        ] = None,
        release: Annotated[
            bool,
            typer.Option("--release", help="Keep collections and files, for a cluster without a running operator."),
        ] = False,
        yes: Yes = False,
        context: Context = None,
    ) -> None:
        """Delete all objects and CustomResourceDefinitions, after saving a catalogue of the objects to a file."""
        if not dry_run:
            check_answerable(QUESTION, yes=yes)
        file = catalogue or Path(f"agentmemory-catalogue-{datetime.now(UTC):%Y%m%dt%H%M%Sz}.json")
        run_command(_uninstall(open_installed, context, CatalogueFile(file), dry_run=dry_run, release=release, yes=yes))


class CatalogueFile:
    """The catalogue file of one run. It is replaced atomically.

    Raises:
        typer.BadParameter: If the file exists already: it may be the catalogue of another run.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise typer.BadParameter(
                f"--catalogue {path} exists already and may record deleted objects: use another file"
            )
        self.path = path

    def keep(self, objects: Sequence[Json]) -> None:
        """Replace the catalogue by these objects: atomically, flushed to disk, readable by this user only."""
        document = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        with open_replacement(self.path) as draft:
            draft.write(json.dumps(document, indent=1).encode())


async def _uninstall(
    open_installed: OpenInstalled, context: str | None, file: CatalogueFile, *, dry_run: bool, release: bool, yes: bool
) -> None:
    async with open_installed(context) as installed:
        found = await read_installation(installed)
        show(installation_sections(found, is_released=release), Console())
        file.keep([catalogue_entry(document) for document in found.objects])
        typer.echo(f"catalogue: {file.path}")
        if dry_run:
            typer.echo("nothing was changed")
            return
        check_uninstallable(found, is_released=release)
        confirm(QUESTION, yes=yes)
        await Uninstall(installed, release, file.keep, typer.echo).run(found)
    typer.echo("to finish: kubectl delete -f examples/install/ --ignore-not-found")


def installation_sections(target: Installation, *, is_released: bool) -> list[Section]:
    """Render the number of objects to delete by kind, and by the effect on their collections and files.

    Args:
        is_released: True if no operator carries out the objects' policies.
    """
    counts = Counter(
        (document["kind"], describe_deletion(document, is_released=is_released)) for document in target.objects
    )
    rows = tuple((kind, str(number), effect) for (kind, effect), number in counts.items())
    state = f"an operator is running in {', '.join(target.operators)}" if target.operators else "no operator is running"
    heading = f"{len(target.definitions)} definitions with {len(target.objects)} objects; {state}"
    notes = (
        [f"{len(target.waiting_objects)} objects wait for an operator before they are deleted"]
        if target.waiting_objects
        else []
    )
    return [Section(heading, columns=COLUMNS if rows else (), rows=rows, notes=tuple(notes))]

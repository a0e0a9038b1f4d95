"""The order of the rooms, and of the floors of the package, as a contract for import-linter: docs/architecture.md."""

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

RULES, MODULES = "rules", "modules"


class RoomsContract(Contract):
    """Each module imports only from lower floors, and on the floors `rules` and `modules` only from lower rooms.

    Options:
        package: Package that contains the floors.
        floors: From high to low; several names in one, separated by ` | `, do not import each other. `rules` stands for
            the `rules` of all rooms, and rooms that consist of rules only; `modules` for the rest of the rooms.
        rooms: From high to low.
        pure: Rooms that consist of rules only.
    """

    package = fields.StringField()
    floors = fields.ListField(subfield=fields.StringField())
    rooms = fields.ListField(subfield=fields.StringField())
    pure = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find each import of a higher or neighbouring module, and each module outside all floors."""
        package: str = self.package  # type: ignore[assignment]
        places: dict[str, tuple[int, int, str]] = {}
        unplaced = []
        for module in sorted(graph.modules):
            if module.startswith(f"{package}."):
                place = self._place_of(module.removeprefix(f"{package}.").split("."))
                if place is None:
                    unplaced.append(module)
                else:
                    places[module] = place
        wrong = [
            (importer, imported)
            for importer, place in places.items()
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if imported in places and not _may_know(place, places[imported])
        ]
        return ContractCheck(kept=not wrong and not unplaced, metadata={"wrong": wrong, "unplaced": unplaced})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each wrong import, and each module outside all floors."""
        for importer, imported in check.metadata["wrong"]:
            output.print_error(f"{importer} imports {imported}, which is above it or beside it")
        for module in check.metadata["unplaced"]:
            output.print_error(f"{module} is in no room and on no floor")

    def _place_of(self, parts: list[str]) -> tuple[int, int, str] | None:
        """Return floor and room of a module as numbers, higher for lower ones, and its name on the floor.

        None for a module outside all floors.
        """
        floors: list[Any] = list(self.floors)  # type: ignore[call-overload]
        rooms: list[Any] = list(self.rooms)  # type: ignore[call-overload]
        if parts[0] not in rooms:
            named = [number for number, names in enumerate(floors) if parts[0] in names.split(" | ")]
            return (named[0], 0, parts[0]) if named else None
        is_rules = parts[0] in list(self.pure) or parts[1:2] == [RULES]  # type: ignore[call-overload]
        return floors.index(RULES if is_rules else MODULES), rooms.index(parts[0]), parts[0]


def _may_know(importer: tuple[int, int, str], imported: tuple[int, int, str]) -> bool:
    if importer[:2] == imported[:2]:
        return importer[2] == imported[2]
    return importer[:2] < imported[:2]

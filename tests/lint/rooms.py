"""The order of the rooms, and of the floors of the package, as a contract for import-linter: docs/architecture.md."""

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

RULES, MODULES = "rules", "modules"


class RoomsContract(Contract):
    """Each module imports downwards only: by floors, and on the floors of rules and of rooms by rooms.

    Options:
        package: what holds the floors.
        floors: from high to low; several names in one, separated by ` | `, do not know each other. `rules` stands for
            the `rules` of all rooms, and rooms that have nothing else; `modules` for the rest of the rooms.
        rooms: from high to low.
        pure: rooms that are rules as a whole.
    """

    package = fields.StringField()
    floors = fields.ListField(subfield=fields.StringField())
    rooms = fields.ListField(subfield=fields.StringField())
    pure = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find each import that runs the other way, and each module that has no place."""
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
        """Print what was found."""
        for importer, imported in check.metadata["wrong"]:
            output.print_error(f"{importer} imports {imported}, which is above it or beside it")
        for module in check.metadata["unplaced"]:
            output.print_error(f"{module} is in no room and on no floor")

    def _place_of(self, parts: list[str]) -> tuple[int, int, str] | None:
        """Return floor and room of a module, higher numbers below, and the name that it goes by on its floor."""
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

"""Import contract of the rooms: finds imports against the order."""

import pytest
from grimp import ImportGraph

from tests.lint.rooms import RoomsContract

OPTIONS = {
    "package": "p",
    "floors": ["main", "entry | other", "modules", "ports", "rules", "errors"],
    "rooms": ["upper", "lower", "spec"],
    "pure": ["spec"],
}


@pytest.mark.parametrize(
    ("importer", "imported", "is_kept"),
    [
        ("p.main.a", "p.entry.b", True),
        ("p.entry.a", "p.main.b", False),
        ("p.entry.a", "p.entry.b", True),
        ("p.entry.a", "p.other.b", False),
        ("p.upper.a", "p.lower.b", True),
        ("p.lower.a", "p.upper.b", False),
        ("p.lower.a", "p.upper.rules.b", True),
        ("p.lower.rules.a", "p.upper.rules.b", False),
        ("p.upper.rules.a", "p.lower.rules.b", True),
        ("p.upper.rules.a", "p.lower.b", False),
        ("p.upper.rules.a", "p.upper.b", False),
        ("p.upper.rules.a", "p.ports.b", False),
        ("p.ports.a", "p.upper.rules.b", True),
        ("p.ports.a", "p.lower.b", False),
        ("p.spec.a", "p.lower.rules.b", False),
        ("p.lower.rules.a", "p.spec.b", True),
        ("p.spec.a", "p.spec.b", True),
        ("p.spec.a", "p.errors", True),
        ("p.nowhere.a", "p.errors", False),
    ],
)
def test_imports_run_downwards(importer: str, imported: str, is_kept: bool) -> None:
    graph = ImportGraph()
    graph.add_import(importer=importer, imported=imported)

    contract = RoomsContract("rooms", {"root_packages": ["p"]}, OPTIONS)

    assert contract.check(graph, verbose=False).kept is is_kept

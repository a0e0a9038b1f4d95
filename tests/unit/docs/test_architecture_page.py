"""Files, classes and constants of the code that pages mention exist."""

import ast
import collections
import functools
import pathlib
import re

from agentmemory_operator.spec.kinds.conditions import TYPES, Reason
from tests.support.source_trees import modules_below, nodes_of

ROOT = pathlib.Path(__file__).resolve().parents[3]
TREE = ROOT / "operator" / "agentmemory_operator"
SOURCES = [ROOT / name for name in ("operator", "client", "devserver", "tests", "bench", "examples")]
BY_NAME = collections.defaultdict[str, list[pathlib.Path]](list)
for source in SOURCES:
    for path in source.rglob("*.py"):
        BY_NAME[path.name].append(path)
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "tests").rglob("*.md")]
# Each package of the operator describes itself in its `__init__.py`.
STORIES = [ROOT / "docs" / "architecture.md", *sorted(TREE.glob("*/__init__.py"))]
NAMED = re.compile(r"`([\w./-]+/[\w-]+\.py)(?:(?::: |: |::)([A-Za-z_][\w.]*))?")


def files_of(named: str) -> list[pathlib.Path]:
    """Return the files that a path in a page may mean: those whose own path ends with it."""
    return [path for path in BY_NAME[pathlib.PurePath(named).name] if str(path).endswith(f"/{named}")]


@functools.cache
def names_in(path: pathlib.Path) -> set[str]:
    """Return the names that a file defines at any depth; for methods and fields also `Class.name`."""
    names: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if isinstance(node, ast.ClassDef):
            inside = [part for part in ast.walk(node) if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            fields = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
            names |= {f"{node.name}.{part.name}" for part in inside}
            names |= {f"{node.name}.{field.id}" for field in fields if isinstance(field, ast.Name)}
    return names


def test_files_and_names_on_pages_exist() -> None:
    missing = []
    for page in PAGES:
        for path, name in NAMED.findall(page.read_text()):
            found = files_of(path)
            if not found or (name and not any(name in names_in(file) for file in found)):
                missing.append(f"{page.name}: {path} {name}".strip())

    assert missing == []


def test_files_and_names_in_rooms_exist() -> None:
    missing = []
    for room in STORIES[1:]:
        for path, name in re.findall(r"`([\w/]+\.py)(?:: ([\w.]+))?`", room.read_text()):
            found = [room.parent / path] if (room.parent / path).is_file() else files_of(path)
            if not found or (name and not any(name in names_in(file) for file in found)):
                missing.append(f"{room.parent.name}: {path} {name}".strip())

    assert missing == []


def test_names_in_stories_exist() -> None:
    """Checks each class, each constant and each `Class.name` in backticks."""
    defined = {name for path in modules_below(TREE) for name in names_in(path)}
    text = "".join(page.read_text() for page in STORIES)
    named = set(re.findall(r"`(?:[\w/]+\.py: )?([A-Z][a-z]+\w*(?:\.\w+)?|[A-Z]+_[A-Z_]+)`", text))
    reported = {*Reason, *(type_ for types in TYPES.values() for type_ in types)}

    assert len(named) > 30
    assert sorted(named - defined - reported) == []

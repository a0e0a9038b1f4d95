"""Docstrings, comments and names are in plain words, and docstrings describe only existing arguments."""

import ast
import pathlib
import re

import pytest

from tests.lint.prose import prose_of
from tests.support.source_trees import modules_below, nodes_of, tree_of

ROOT = pathlib.Path(__file__).resolve().parents[3]
CODE = ("operator", "client", "devserver", "bench", "examples", "docs", "release")
# Names that do not describe the role of a function or value.
RULED_OUT = {"told", "said", "asked", "made_by", "somebody", "whoever", "nobody", "gone_on"}
BOUNDS = re.compile(r"^_?(MOST|LEAST|LONGEST)_|_(MAX|MIN)$")


@pytest.mark.parametrize("root", CODE)
def test_docstrings_are_plain(root: str) -> None:
    found = prose_of(ROOT / root)

    assert found.words > 1_000
    assert (round(found.excess) <= 10, found.riddles <= 0.02) == (True, True), found


def test_docstrings_name_arguments_that_exist() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {name}"
        for root in CODE
        for path in modules_below(ROOT / root)
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if (described := described_in(ast.get_docstring(node) or ""))
        for name in described - names_of(node)
    ]

    assert wrong == []


def test_bounds_are_named_alike() -> None:
    names = {
        f"{path.relative_to(ROOT)}: {target.id}"
        for root in ("operator", "client", "devserver")
        for path in modules_below(ROOT / root)
        for node in tree_of(path).body
        for target in targets_of(node)
        if BOUNDS.search(target.id) or target.id in RULED_OUT
    }

    assert names == set()


def described_in(docstring: str) -> set[str]:
    """Return the names that the sections Args and Attributes describe."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", docstring, re.MULTILINE)
    rows = [row for section in sections for row in section.splitlines()]
    keys = [match[1] for row in rows if (match := re.match(r"    ((?:\*{0,2}\w+, )*\*{0,2}\w+):", row))]
    return {name.lstrip("*") for key in keys for name in key.split(", ")}


def names_of(node: ast.AST) -> set[str]:
    """Return the parameters of a function; of a class also its fields, methods and attributes."""
    names = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    if isinstance(node, ast.ClassDef):
        names |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
        names |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        names |= {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
    return names


def targets_of(node: ast.stmt) -> list[ast.Name]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target for target in targets if isinstance(target, ast.Name)]

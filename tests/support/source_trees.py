"""Syntax trees of our code, parsed once a process: several tests read all modules."""

import ast
import pathlib
from functools import cache


@cache
def tree_of(path: pathlib.Path) -> ast.Module:
    """Return the syntax tree of a module; callers must not change it."""
    return ast.parse(path.read_text())


@cache
def nodes_of(path: pathlib.Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module."""
    return tuple(ast.walk(tree_of(path)))


def modules_below(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the modules of a folder and of the folders in it, in order."""
    return sorted(folder.rglob("*.py"))

"""Structure of the operator's code: sizes, unique class names, no import cycles."""

import ast
import collections
import graphlib
import pathlib
import re
import statistics
from collections.abc import Collection, Sequence

from tests.lint.prose import TOKENS
from tests.support.source_trees import modules_below, nodes_of, tree_of

PROJECT = pathlib.Path(__file__).resolve().parents[2]
ROOT = PROJECT / "operator"


def trees() -> dict[pathlib.Path, ast.Module]:
    """Parse every module of the operator. Parsing at import would slow down each process of a test run."""
    return {path: tree_of(path) for path in modules_below(ROOT)}


def imported_by(tree: ast.Module, modules: Collection[str]) -> set[str]:
    """Return the product's modules that a module imports at its top level."""
    named = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            named |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return named & set(modules)


def test_no_function_is_longer_than_a_screen() -> None:
    functions = {
        f"{path.relative_to(ROOT)}: {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in trees()
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert {name: lines for name, lines in functions.items() if lines > 40} == {}
    assert statistics.median(functions.values()) <= 8


def test_no_module_is_longer_than_400_lines() -> None:
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in trees()}

    assert {name: count for name, count in lines.items() if count > 400} == {}


def test_no_package_has_more_than_30_modules() -> None:
    sizes = collections.Counter(str(path.parent.relative_to(ROOT)) for path in trees())

    assert {name: count for name, count in sizes.items() if count > 30} == {}


def test_the_name_of_a_class_means_one_thing() -> None:
    named = collections.defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named[node.name].append(str(path.relative_to(ROOT)))

    assert {name: places for name, places in named.items() if len(places) > 1} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """`prepare` raises CycleError, which contains the cycle."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): tree
        for path, tree in trees().items()
    }
    graph = {name: imported_by(tree, modules.keys()) - {name} for name, tree in modules.items()}

    graphlib.TopologicalSorter(graph).prepare()


def test_each_package_says_in_one_docstring_what_it_is_for() -> None:
    packages = [path for path in trees() if path.name == "__init__.py" and len(path.relative_to(ROOT).parts) > 2]
    bare = {"main", "presets"}

    silent = [path for path in packages if not ast.get_docstring(tree_of(path))]
    more = [path for path in packages if len(tree_of(path).body) > 1 and path.parent.name not in bare]
    assert [str(path.relative_to(ROOT)) for path in [*silent, *more]] == []


# New code replaces old code: only an issue that adds a package raises a budget, by the size of the package.
BUDGETS = {
    "code lines of operator/": 62_100,
    "modules of operator/": 628,
    "lines of tests": 134_900,
    "lines of tests/support": 14_150,
    "packages that make demo installs": 96,
}


def code_lines(text: str, nodes: Sequence[ast.AST]) -> int:
    """Return the number of lines that are more than a comment or part of a string statement, such as a docstring."""
    # Each line of any other string counts, also an empty one.
    code = TOKENS.sub(lambda token: "" if token[0].startswith("#") else "_" + "\n_" * token[0].count("\n"), text)
    held = {row for row, line in enumerate(code.split("\n"), 1) if line.strip()}
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            held -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(held)


def lines_below(*folders: str) -> int:
    return sum(path.read_text().count("\n") for folder in folders for path in (PROJECT / folder).rglob("*.py"))


def test_the_house_stays_within_its_budgets() -> None:
    counted = {
        "code lines of operator/": sum(code_lines(path.read_text(), nodes_of(path)) for path in modules_below(ROOT)),
        "modules of operator/": len(modules_below(ROOT)),
        "lines of tests": lines_below("tests", "client/tests", "devserver/tests"),
        "lines of tests/support": lines_below("tests/support"),
        "packages that make demo installs": len(
            re.findall(r"^[\w.-]+==", (PROJECT / "requirements" / "run.txt").read_text(), re.MULTILINE)
        ),
    }
    assert {name: (count, BUDGETS[name]) for name, count in counted.items() if count > BUDGETS[name]} == {}
    # A budget far above the present count would prevent nothing.
    assert {name: (count, BUDGETS[name]) for name, count in counted.items() if count < 0.98 * BUDGETS[name]} == {}

"""What keeps the operator's code a house to find one's way in: sizes, one meaning a class name, no circles."""

import ast
import collections
import graphlib
import pathlib
import statistics

ROOT = pathlib.Path(__file__).resolve().parents[2] / "operator"
TREES = {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in TREES}
FUNCTIONS = {
    f"{path.relative_to(ROOT)}: {node.name}": (node.end_lineno or 0) - node.lineno + 1
    for path, tree in TREES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
}


def imported_by(tree: ast.Module) -> set[str]:
    """Return the modules of ours that a module imports when it is imported itself."""
    named = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            named |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return named & MODULES.keys()


def test_no_function_is_longer_than_a_screen() -> None:
    assert {name: lines for name, lines in FUNCTIONS.items() if lines > 40} == {}
    assert statistics.median(FUNCTIONS.values()) <= 8


def test_no_module_is_longer_than_400_lines() -> None:
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in TREES}

    assert {name: count for name, count in lines.items() if count > 400} == {}


def test_no_package_has_more_than_30_modules() -> None:
    sizes = collections.Counter(str(path.parent.relative_to(ROOT)) for path in TREES)

    assert {name: count for name, count in sizes.items() if count > 30} == {}


def test_the_name_of_a_class_means_one_thing() -> None:
    named = collections.defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named[node.name].append(str(path.relative_to(ROOT)))

    assert {name: places for name, places in named.items() if len(places) > 1} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """`prepare` raises CycleError, which names the circle."""
    graph = {name: imported_by(TREES[path]) - {name} for name, path in MODULES.items()}

    graphlib.TopologicalSorter(graph).prepare()


def test_each_package_says_in_one_docstring_what_it_is_for() -> None:
    packages = [path for path in TREES if path.name == "__init__.py" and len(path.relative_to(ROOT).parts) > 2]
    bare = {"main", "presets"}

    silent = [path for path in packages if not ast.get_docstring(TREES[path])]
    more = [path for path in packages if len(TREES[path].body) > 1 and path.parent.name not in bare]
    assert [str(path.relative_to(ROOT)) for path in [*silent, *more]] == []

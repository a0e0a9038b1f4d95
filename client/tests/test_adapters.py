"""Each adapter has an extra, a line with the versions of its tests, a module of tests, and a row on its page."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from client.tests.adapters.run import read_frameworks

CLIENT = Path(__file__).parents[1]
PAGE = (CLIENT.parent / "docs" / "adapters.md").read_text()
EXTRAS = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
MODULES = sorted(path.stem for path in (CLIENT / "agentmemory_client" / "adapters").glob("[a-z]*.py"))
ADAPTERS = [name for name in MODULES if name not in ("common", "files")]


def extra_of(adapter: str) -> str:
    return adapter.replace("_", "-")


def test_extras_and_versions_are_complete() -> None:
    assert sorted(read_frameworks()) == ADAPTERS
    assert EXTRAS.keys() - {"langgraph"} == {extra_of(name) for name in ADAPTERS}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapter_has_tests_and_a_row(adapter: str) -> None:
    assert (CLIENT / "tests" / "adapters" / f"test_{adapter}.py").is_file()
    assert re.search(rf"^\| [^|]+, `{extra_of(adapter)}` \|", PAGE, re.M)
    assert f"agentmemory_client.adapters.{adapter} " in PAGE


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_tested_version_is_the_lowest_allowed(adapter: str) -> None:
    tested = {Requirement(package).name: package.partition("==")[2] for package in read_frameworks()[adapter]}

    for requirement in map(Requirement, EXTRAS[extra_of(adapter)]):
        [(bound, version)] = [(part.operator, part.version) for part in requirement.specifier]
        assert (bound, Version(version)) == (">=", Version(tested[requirement.name]))

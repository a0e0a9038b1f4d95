"""Layout of the repository: paths, hosts and files that a checkout may contain."""

import pathlib
import re
import subprocess
import tomllib
from functools import cache

import pytest

from conftest import LONGEST

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Folders of one machine, and hosts that packages or images are fetched from by one machine only.
MACHINE_PATHS = re.compile(r"(?<![\w./-])/(home|Users|root|work|workspace|mnt|builds)/[\w.-]+")
HOSTS = re.compile(
    r"(?:artifactory|nexus|devpi|proxy|mirror|registry)[\w-]*\.(?:[\w-]+\.)*"
    r"(?:cloud|com|corp|dev|internal|io|lan|local|net|org)\b",
    re.IGNORECASE,
)


def tracked() -> list[str]:
    """Return the tracked files; skips where there is no repository (an unpacked archive)."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("no git repository here")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@cache
def texts() -> dict[str, str]:
    """Return the content of tracked text files by name."""
    content = {}
    for name in tracked():
        data = (ROOT / name).read_bytes()
        if b"\0" not in data:
            content[name] = data.decode(errors="replace")
    return content


def test_the_folder_operator_is_no_package() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_no_tracked_file_names_a_folder_of_one_machine() -> None:
    found = [f"{name}: {match.group()}" for name, text in texts().items() for match in MACHINE_PATHS.finditer(text)]

    assert found == []


def test_no_tracked_file_names_a_private_registry() -> None:
    hosts = [(name, match.group()) for name, text in texts().items() for match in HOSTS.finditer(text)]

    assert [f"{name}: {host}" for name, host in hosts] == []


def test_the_locked_requirements_name_no_index() -> None:
    locked = {name: text for name, text in texts().items() if name.startswith("requirements/")}

    assert locked
    assert [name for name, text in locked.items() if "index-url" in text or "://" in text] == []


def test_each_of_the_longest_files_is_there() -> None:
    assert [file for file in LONGEST if not (ROOT / file).is_file()] == []


def test_modules_named_by_the_tests_readme_exist() -> None:
    tests = ROOT / "tests"
    pages = (tests / "README.md").read_text() + (tests / "support" / "README.md").read_text()
    named = re.findall(r"`([\w/]+\.py)\b", pages)

    assert len(named) > 20
    found = [name for name in named if any((place / name).is_file() for place in (ROOT, tests, tests / "support"))]
    assert found == named


def test_what_coverage_leaves_out_is_named_from_the_root_on() -> None:
    """A pattern that begins with a star also matches the folders above a checkout, and then nothing is measured."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]

    for pattern in settings["omit"]:
        assert list(ROOT.glob(pattern)), f"{pattern} leaves nothing out, or not from the root on"
        assert pattern.startswith("operator/agentmemory_operator/")

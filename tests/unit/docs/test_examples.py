"""examples: every folder has a README, is in the index, and holds only valid manifests."""

import pathlib

import pytest

from agentmemory_operator.entrypoints.cli.look.validate import check_manifests
from tests.support.pages import DOCS

EXAMPLES = DOCS.parent / "examples"
FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__")
INDEX = (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_folder_is_explained_and_listed(folder: pathlib.Path) -> None:
    page = (folder / "README.md").read_text()

    assert page.startswith("# ")
    assert f"[{folder.name}]({folder.name})" in INDEX


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_manifests_are_valid(folder: pathlib.Path) -> None:
    paths = [path for path in sorted(folder.rglob("*.yaml")) if "apiVersion: agentmemory.dev/" in path.read_text()]

    assert [found for path in paths for found in check_manifests([path], is_recursive=False).findings] == []

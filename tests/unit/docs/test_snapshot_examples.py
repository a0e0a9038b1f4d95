"""Manifests of snapshots and restores in examples and on pages are valid."""

import pathlib
import re

import pytest
import yaml

from agentmemory_operator.entrypoints.cli.look.validate import check_manifests
from agentmemory_operator.spec.kinds.parse import find_errors
from tests.support.pages import DOCS

EXAMPLES = sorted((DOCS.parent / "examples" / "snapshots").glob("*.yaml"))
PAGES = ("snapshots.md", "restore.md", "runbook-restore.md")
# Values that a reader fills in.
PLACEHOLDERS = {"ENDPOINT": "https://minio.storage.svc:9000", "BUCKET": "bucket", "KEY": "a/b", "OWNER": "uid"}
BLOCKS = [
    (page, block)
    for page in PAGES
    for block in re.findall(r"^```yaml\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)
]
WHOLE = [(page, block) for page, block in BLOCKS if "apiVersion: agentmemory.dev/" in block]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_valid(path: pathlib.Path) -> None:
    assert check_manifests([path], is_recursive=False).findings == []


@pytest.mark.parametrize(("page", "block"), WHOLE, ids=[page for page, _ in WHOLE])
def test_manifest_on_a_page_is_valid(page: str, block: str) -> None:
    for word, value in PLACEHOLDERS.items():
        block = block.replace(word, value)

    documents = list(yaml.safe_load_all(block))

    assert [find_errors(document) for document in documents] == [[] for _ in documents]


def test_every_example_is_listed() -> None:
    page = (DOCS.parent / "examples" / "snapshots" / "README.md").read_text()

    assert {path.name for path in EXAMPLES} == set(re.findall(r"^\| \[(\S+)\]", page, re.M))

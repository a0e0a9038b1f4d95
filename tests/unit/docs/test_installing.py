"""Installation commands on pages: from a checkout until a release is published, then by the names on the indexes."""

import pathlib
import re

import pytest

from docs.site import installing
from docs.site.installing import PUBLISHED, installed, pages
from docs.site.links import ROOT
from docs.site.reference import reference_pages
from docs.site.stage import Stage

NAMES = re.compile(
    r"(?:pip|pipx|uv tool|npm) install[^\n]*?[ '\"](?:agentmemory-operator|agentmemory-client|qdrant-devserver)\b"
)
BOTH = [path for path in pages() if "<!-- checkout -->" in path.read_text()]
IDS = [path.relative_to(ROOT).as_posix() for path in BOTH]


def test_five_minute_pages_have_both_ways() -> None:
    assert {path.name for path in (ROOT / "docs" / "five-minutes").glob("*.md")} <= {path.name for path in BOTH}


@pytest.mark.skipif(PUBLISHED, reason="the names are on the indexes")
def test_no_page_installs_an_unpublished_name() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): NAMES.findall(installed(path.read_text(), published=False))
        for path in pages()
    }

    assert {page: names for page, names in found.items() if names} == {}


@pytest.mark.parametrize("page", BOTH, ids=IDS)
def test_page_shows_one_way(page: pathlib.Path) -> None:
    now, later = (installed(page.read_text(), published=published) for published in (False, True))

    assert "<!-- " not in now
    assert NAMES.search(later)
    assert re.findall(r"<!-- |-->|^\$ make |/wheels/|checkout", later, re.M) == []


@pytest.mark.parametrize("published", [False, True])
def test_site_shows_the_chosen_way(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, published: bool) -> None:
    monkeypatch.setattr(installing, "PUBLISHED", published)
    Stage(tmp_path, reference_pages()).write()

    page = (tmp_path / "five-minutes" / "python.md").read_text()
    assert ("$ make install\n" in page, "$ pip install 'agentmemory-operator[dev]'" in page) == (
        not published,
        published,
    )


def test_sources_keep_one_way(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "client").mkdir()
    readme = tmp_path / "client" / "README.md"
    readme.write_text("A\n<!-- checkout -->\nB\n<!-- published\nC\n-->\nD\n")
    monkeypatch.setattr(installing, "ROOT", tmp_path)
    monkeypatch.setattr(installing, "PUBLISHED", True)

    installing.main()

    assert readme.read_text() == "A\nC\nD\n"

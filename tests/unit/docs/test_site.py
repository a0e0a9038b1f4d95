"""The documentation site of `make docs`: all pages, all fields, and working links."""

import pathlib

import yaml

from docs.site.kinds import fields_of, kind_pages
from docs.site.links import ROOT, anchors_of, links_of
from docs.site.reference import reference_pages
from docs.site.stage import HOME, Stage
from tests.support.spec.golden import LOADER

NAV = yaml.safe_load((ROOT / "docs" / "site" / "nav.yaml").read_text())
LISTED = [entry for entries in NAV.values() for entry in entries]
FOLDERS = ("docs", "charts", "examples", "tests", "client", "devserver", "bench")
PAGES = sorted({*(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")), *ROOT.glob("*.md")})
SOURCES = [path for path in PAGES if not {".venv", "node_modules", "__pycache__"} & set(path.parts)]


def named(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_link_and_anchor_has_a_target() -> None:
    wrong = []
    links = [(page, target) for page in SOURCES for target in links_of(page.read_text())]
    for page, target in links:
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        is_page = found.is_file() and found.suffix == ".md"
        if not found.exists() or (anchor and not (is_page and anchor in anchors_of(found.read_text()))):
            wrong.append((named(page), target))

    assert wrong == []


def test_listed_pages_exist_and_are_unique() -> None:
    single = [entry for entry in LISTED if "*" not in entry and not entry.startswith(("reference/", "claims/"))]

    assert len(LISTED) == len(set(LISTED))
    assert [entry for entry in single if not (ROOT / entry).is_file()] == []


def test_every_page_is_in_the_navigation() -> None:
    pages = {named(path) for path in (ROOT / "docs").glob("*.md")}
    placed = {named(path) for entry in LISTED for path in ROOT.glob(entry)}

    assert sorted(pages - placed - {HOME}) == []


def test_kind_pages_have_every_field() -> None:
    pages = kind_pages()
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        spec = yaml.load(path.read_text(), Loader=LOADER)["spec"]
        schema = spec["versions"][-1]["schema"]["openAPIV3Schema"]["properties"]
        page = pages.pop(f"reference/{spec['names']['kind'].lower()}.md")
        fields = [field for part in ("spec", "status") for field, _, _ in fields_of(schema[part], part)]

        assert len(fields) > 10
        assert [field for field in fields if f"# `{field}`\n" not in page] == [], path.stem
    assert pages == {}


def test_stage_writes_pages_and_home_links(tmp_path: pathlib.Path) -> None:
    Stage(tmp_path, reference_pages()).write()

    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}
    assert {
        "index.md",
        "client.md",
        "reference/agentmemory.md",
        "examples/quickstart.md",
        "repository/client.md",
    } <= written
    home = (tmp_path / "index.md").read_text()
    assert all(place.removesuffix(".md") in home for place in written if not place.startswith(("files/", "index")))

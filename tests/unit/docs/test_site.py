"""The documentation site of `make docs`: all pages, all fields, and working links."""

import pathlib
import re

import yaml

from agentmemory_operator.spec.kinds.parse import find_errors
from docs.site.kinds import EXAMPLES, children_of, fields_of, kind_pages
from docs.site.links import ROOT, anchors_of, links_of
from docs.site.reference import reference_pages
from docs.site.stage import HOME, Stage
from docs.site.tabs import with_tabs
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
        assert [field for field in fields if f'<a id="{field}"></a>' not in page] == [], path.stem
    assert pages == {}


def test_every_block_has_a_valid_example() -> None:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        spec = yaml.load(path.read_text(), Loader=LOADER)["spec"]
        examples = dict(EXAMPLES[spec["names"]["kind"]])
        whole = yaml.safe_load(examples.pop("spec"))
        documents = [whole, *(whole | {"spec": whole["spec"] | yaml.safe_load(text)} for text in examples.values())]
        schema = spec["versions"][-1]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        blocks = {
            field for field, child, _ in children_of(schema, "spec") if any(True for _ in children_of(child, field))
        }

        assert [error for document in documents for error in find_errors(document)] == []
        assert blocks - examples.keys() == set(), path.stem


def test_pages_state_rules_instead_of_advice() -> None:
    page = kind_pages()["reference/agentmemory.md"]

    assert "`device`: not with `provider` `none`, `openai` or `wordllama`." in page
    assert "`weights`, `utilityNorm` and `confidenceShare`: only with `model: Weighted`." in page
    assert "`dimensions` of `provider` wordllama must be 64, 128 or 256." in page.lower()
    assert [word for word in ("takes no", "remove it", "raise the one", "is empty") if word in page] == []


def test_no_field_is_required_and_has_a_default() -> None:
    lines = [line for page in kind_pages().values() for line in re.findall(r"\*\*required\*\*.*\n\n?.*", page)]

    assert len(lines) > 20
    assert [line for line in lines if "*Default:*" in line] == []


def test_navigation_has_few_groups_and_python_first() -> None:
    assert len(NAV) <= 12
    assert LISTED[0] == "docs/five-minutes/python.md"


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
    assert "](pictures/timeline-as-of-dark.webp)" in (tmp_path / "explorer.md").read_text()
    assert (tmp_path / "pictures" / "timeline-as-of-dark.webp").read_bytes().startswith(b"RIFF")
    groups = {path.stem: path.read_text() for path in (tmp_path / "groups").glob("*.md")}
    home = (tmp_path / "index.md").read_text()
    assert all(f"groups/{name}\n" in home for name in groups)
    listed = "".join(groups.values())
    pages = [place for place in written if not place.startswith(("files/", "index", "groups/"))]
    assert [place for place in pages if f"\n/{place.removesuffix('.md')}\n" not in listed] == []


def test_three_languages_become_tabs() -> None:
    console, python, ts = (f"```{language}\n{language}\n```\n" for language in ("console", "python", "ts"))
    page = f"{console}\ntext\n\n{console}\n{python}\n{ts}\n{python}\n{ts}"

    shown = with_tabs(page)

    assert shown.startswith(f'{console}\ntext\n\n```{{raw}} html\n<div class="tabs">')
    assert shown.endswith(f"\n{python}\n{ts}")
    assert shown.count('type="radio"') == shown.count("<label") == shown.count('class="tab"') == 3
    assert shown.count(" checked") == 1
    assert shown.count("<div") == shown.count("</div>")

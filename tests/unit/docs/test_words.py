"""Texts for users contain no word that CONTRIBUTING.md rules out."""

import ast
import pathlib
import re
from collections.abc import Callable, Container, Iterator
from typing import Any

import pytest
import yaml
from typer.main import get_command

from tests.support.command_line import command_line
from tests.support.source_trees import modules_below, nodes_of
from tests.support.spec.golden import LOADER
from tests.support.web.endpoints import DOCUMENT

ROOT = pathlib.Path(__file__).resolve().parents[3]
SOURCES = (ROOT / "operator", ROOT / "client" / "agentmemory_client", ROOT / "devserver" / "qdrant_devserver")
CHART = ROOT / "charts" / "agentmemory-operator"
# Instructions to language models, a list of stop words, and the texts of tools for models.
NOT_FOR_USERS = re.compile(
    r"(consolidation/rules/model_findings|distillation/rules/model_output|memories/rules/(words|model_tools))[.]py"
)
# Up to three words stand for the dots of an entry like `what ... of`.
_ANY_WORDS = r"(?! kind)(?: [\w-]+){1,3} "

Text = tuple[str, str]


def words_not_used() -> dict[str, str]:
    """Return the words that the table in CONTRIBUTING.md rules out, with their replacements."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| not | but |\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()[1:]]
    return {word: instead for not_used, instead in rows for word in re.findall(r"`([^`]+)`", not_used)}


def pattern_of(words: dict[str, str]) -> re.Pattern[str]:
    """Return an expression for any of the words, whole and in upper or lower case."""
    spelt = [re.escape(word).replace(r"\ ", " ").replace(r" \.\.\. ", _ANY_WORDS) for word in words]
    return re.compile(rf"\b(?:{'|'.join(sorted(spelt, key=len, reverse=True))})(?:(?<=\W)|(?!\w))", re.I)


def crd_texts() -> Iterator[Text]:
    """Yield the descriptions and the messages of all CRDs, each with the path to it."""
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        yield from texts_in(yaml.load(path.read_text(), Loader=LOADER), ("description", "message"), path.stem)


def texts_in(node: Any, names: Container[str], path: str) -> Iterator[Text]:
    """Yield the texts under certain keys of a document, each with the path to it."""
    if isinstance(node, dict):
        for name, child in node.items():
            if name in names and isinstance(child, str):
                yield path, child
            else:
                yield from texts_in(child, names, f"{path}.{name}")
    elif isinstance(node, list):
        for child in node:
            yield from texts_in(child, names, path)


def command_texts() -> Iterator[Text]:
    """Yield the help of the command line, of its commands and of their options."""
    yield from _helps("agentmemory", get_command(command_line()))


def _helps(name: str, command: Any) -> Iterator[Text]:
    yield name, command.help or ""
    for parameter in command.params:
        yield f"{name} {max(parameter.opts, key=len)}", getattr(parameter, "help", None) or ""
    for verb, below in getattr(command, "commands", {}).items():
        yield from _helps(f"{name} {verb}", below)


def http_texts() -> Iterator[Text]:
    """Yield the descriptions, summaries and titles of the OpenAPI document, without examples."""
    texts = texts_in(DOCUMENT, ("description", "summary", "title"), "openapi")
    yield from (text for text in texts if ".example." not in text[0])


def page_texts(*pages: pathlib.Path) -> Iterator[Text]:
    """Yield the paragraphs of pages, without code."""
    for path in pages:
        prose = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.M | re.S)
        for paragraph in re.split(r"\n\s*\n", re.sub(r"`[^`\n]*`", "``", prose)):
            yield str(path.relative_to(ROOT)), " ".join(paragraph.split())


def chart_texts() -> Iterator[Text]:
    """Yield the comments of values.yaml and the Makefile, and the chart's schema, alerts, dashboard and notes."""
    for path in (CHART / "values.yaml", ROOT / "Makefile"):
        yield str(path.relative_to(ROOT)), " ".join(re.findall(r"#+ (.*)", path.read_text()))
    for name in ("values.schema.json", "files/alerts.yaml", "files/dashboard.json"):
        # The alerts contain templates of Prometheus, and JSON is valid YAML.
        document = yaml.load((CHART / name).read_text(), Loader=LOADER)
        yield from texts_in(document, ("description", "summary", "title"), name)
    yield from page_texts(CHART / "templates" / "NOTES.txt")


def source_texts() -> Iterator[Text]:
    """Yield the strings of the code that contain a space, except docstrings and texts for language models."""
    files = sorted(file for folder in SOURCES for file in modules_below(folder))
    for path in (file for file in files if not NOT_FOR_USERS.search(str(file))):
        nodes = nodes_of(path)
        docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                pieces = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
                yield f"{path.relative_to(ROOT)}:{node.lineno}", "".join(map(str, pieces))
            elif isinstance(node, ast.Constant) and " " in str(node.value) and id(node) not in docs | parts:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", str(node.value)


NOT_USED = pattern_of(words_not_used())


def decisions() -> Iterator[Text]:
    """Yield the paragraphs of the decision records."""
    return page_texts(*sorted((ROOT / "docs" / "adr").glob("*.md")))


def pages() -> Iterator[Text]:
    """Yield the paragraphs of README files, examples and docs, except decision records."""
    readmes = [ROOT / "README.md", ROOT / "client" / "README.md", *sorted((ROOT / "examples").rglob("*.md"))]
    return page_texts(*readmes, *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "adr"))


TEXTS: dict[str, Callable[[], Iterator[Text]]] = {
    "chart": chart_texts,
    "commands": command_texts,
    "crds": crd_texts,
    "decisions": decisions,
    "http": http_texts,
    "pages": pages,
    "sources": source_texts,
}


@pytest.mark.parametrize("area", TEXTS)
def test_texts_for_users_use_no_ruled_out_word(area: str) -> None:
    texts = [(place, text) for place, text in TEXTS[area]() if text]
    met = [f"{place}: {found[0]!r} in {text[:200]!r}" for place, text in texts for found in NOT_USED.finditer(text)]

    assert len(texts) > 1
    assert met == [], "\n".join(met)


def test_each_command_and_option_has_a_help() -> None:
    assert [place for place, text in command_texts() if not text] == []

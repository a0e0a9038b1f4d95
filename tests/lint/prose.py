"""Measure how far docstrings, comments and names are from how Python's field writes them; `make prose` prints it.

A marker is a word that the field rarely uses. Its rate is counted in words of docstrings and comments, without code in
backticks. The reference rates were counted on 2026-11-26 in kopf, httpx, FastAPI, Starlette, aiohttp, rich, typer,
pydantic, anyio, hypothesis, pytest and openai: 466,008 words. A figure shows where a reader stumbles; it is no proof.
"""

import ast
import collections
import itertools
import pathlib
import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.support.source_trees import modules_below, nodes_of

# Occurrences per 1,000 words in the reference packages.
REFERENCE_RATES = {
    "what": 0.40, "whose": 0.06, "whoever": 0.005, "whatever": 0.03, "who": 0.02, "whom": 0.005, "nobody": 0.015,
    "somebody": 0.005, "says": 0.05, "say": 0.05, "said": 0.01, "told": 0.01, "tell": 0.06, "tells": 0.03,
    "knows": 0.025, "asks": 0.03, "asked": 0.05, "stands": 0.005, "stand": 0.01, "lies": 0.015, "lie": 0.005,
    "anew": 0.005, "begun": 0.005, "meanwhile": 0.005, "beside": 0.01, "goes": 0.03, "came": 0.02, "gone": 0.04,
    "away": 0.055, "held": 0.04, "bears": 0.005, "likely": 0.05, "alone": 0.04, "wanted": 0.02, "looked": 0.01,
    "ours": 0.01, "others": 0.055, "waited": 0.005, "people": 0.006, "leads": 0.015, "begins": 0.015, "counted": 0.02,
    "made": 0.2, "half": 0.03, "once more": 0.005, "none where": 0.005, "that is": 0.6, "of it": 0.08, "is to": 0.12,
    "so that": 0.25, "no more": 0.02, "where there": 0.05,
}  # fmt: skip
# A string or a comment. `tokenize` takes ten times as long.
TOKENS = re.compile(r"""(?s)(\"{3}|'{3})(?:\\.|.)*?\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*""")
RIDDLES = re.compile(r"(What|Whose|Who|Whether|Where|How|Of|Whatever|That)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose:
    """Figures of the prose in a tree.

    Attributes:
        words: Number of words of docstrings and comments.
        excess: Occurrences of markers per 1,000 words, above twice the reference rate of each.
        riddles: Share of docstrings that open with a question word, 0..1.
        test_names: Length of each test's name in characters.
    """

    words: int
    excess: float
    riddles: float
    test_names: tuple[int, ...]


def prose_of(*roots: pathlib.Path) -> Prose:
    """Measure all modules below some folders."""
    words: collections.Counter[str] = collections.Counter()
    docstrings, riddles, names = 0, 0, []
    for path in (path for root in roots for path in modules_below(root)):
        nodes = nodes_of(path)
        own = [*docstrings_of(nodes)]
        docstrings, riddles = docstrings + len(own), riddles + sum(bool(RIDDLES.match(text)) for text in own)
        words.update(terms_of([*own, *comments_of(path.read_text())]))
        functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        names += [len(node.name) for node in functions if node.name.startswith("test_")]
    total = sum(count for word, count in words.items() if " " not in word)
    rates = {marker: 1000 * words[marker] / max(total, 1) for marker in REFERENCE_RATES}
    excess = sum(max(0.0, rates[marker] - 2 * rate) for marker, rate in REFERENCE_RATES.items())
    return Prose(words=total, excess=excess, riddles=riddles / max(docstrings, 1), test_names=tuple(names))


def docstrings_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the docstrings of modules, classes and functions."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from filter(None, [ast.get_docstring(node)])


def comments_of(source: str) -> Iterator[str]:
    """Yield the comments of a module."""
    return (token[0].lstrip("#: ") for token in TOKENS.finditer(source) if token[0].startswith("#"))


def terms_of(texts: Iterable[str]) -> Iterator[str]:
    """Yield each word, and each pair of words within a sentence."""
    for text in texts:
        for sentence in re.split(r"[.;:!?]\s+|\n\s*\n", re.sub(r"`[^`]*`", " X ", text)):
            words = re.findall(r"[a-z']+", sentence.lower())
            yield from words
            yield from (f"{first} {second}" for first, second in itertools.pairwise(words))


def main() -> None:
    """Print the figures of each folder that is named, one a line."""
    for root in sys.argv[1:]:
        found = prose_of(pathlib.Path(root))
        line = f"{root}: {found.words} words, excess {found.excess:.1f} per 1,000, riddles {100 * found.riddles:.1f} %"
        if found.test_names:
            median = statistics.median(found.test_names)
            line += f"; test names: median {median:.0f}, longest {max(found.test_names)} characters"
        print(line)


if __name__ == "__main__":
    main()

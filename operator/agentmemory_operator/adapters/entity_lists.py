"""Lists of names and words that are part of the product: files in `entities/data`, read once per process."""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import yaml

from agentmemory_operator.entities.rules.lists import EntityLists, parse_names
from agentmemory_operator.memories.rules.entities import fold

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def read_entity_lists() -> EntityLists:
    """Read the lists of known names and of everyday words from the files. The result is cached."""
    folder = files("agentmemory_operator.entities") / "data"
    return EntityLists(
        technologies=parse_names(yaml.load(_text(folder, "technologies.yaml"), _LOADER)),
        systems=parse_names(yaml.load(_text(folder, "systems.yaml"), _LOADER)),
        domains=frozenset(_words(folder, "domains.txt")),
        ignored=frozenset(_words(folder, "ignore.txt")),
        words=frozenset(_words(folder, "words.txt")),
        times=frozenset(_words(folder, "times.txt")),
        noise=frozenset(_words(folder, "noise.txt")),
        openers=frozenset(_words(folder, "openers.txt")),
    )


def _text(folder: Traversable, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def _words(folder: Traversable, name: str) -> Iterator[str]:
    for line in _text(folder, name).splitlines():
        if not line.startswith("#"):
            yield from map(fold, line.split())

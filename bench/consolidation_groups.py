"""Generated, labelled and seeded groups of memories with a known correct consolidation.

A group is two to four memories with parts of one statement (merge), two that cannot both be true (contradiction), or
some about one subject that must stay separate (distinct). Each memory has one detail that a merged fact must keep: a
number, a name or a day that no other memory of the set has.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Label = Literal["merge", "contradiction", "distinct"]

_FIRST = ("Ada", "Bruno", "Chiara", "Dmitri", "Elif", "Farid", "Greta", "Hiro", "Ines", "Jonas", "Kaja", "Luis")
_LAST = ("Almeida", "Berg", "Castell", "Dvorak", "Ekman", "Fontana", "Gruber", "Horvat", "Ivanova", "Jansen")
_CITIES = ("Lisbon", "Turin", "Graz", "Lyon", "Porto", "Gdansk", "Bergen", "Ghent", "Malmo", "Trieste", "Basel", "Cork")
_TOOLS = ("PostgreSQL", "Kafka", "Terraform", "Grafana", "Django", "Redis", "Ansible", "Airflow", "Kotlin", "Vault")
_MONTHS = ("January", "March", "April", "June", "July", "August", "October", "November")

_MERGE = (
    (
        "{name} runs {tool} in production.",
        "{name} upgraded {tool} to version {figure}.",
        "{name} runs {tool} in {city}.",
    ),
    (
        "{name} moved to {city}.",
        "{name} has lived in {city} since {month} {year}.",
        "{name}'s flat in {city} has {figure} rooms.",
    ),
    (
        "{name} leads the team for {tool}.",
        "The team of {name} has {figure} people.",
        "{name}'s team for {tool} sits in {city}.",
    ),
)
_CONTRADICTION = (
    ("{name} has {figure} children.", "{name} has no children."),
    ("{name} lives in {city} all year.", "{name} has never been to {city} and lives in {other_city}."),
    ("The contract of {name} ends in {month} {year}.", "The contract of {name} never ends."),
)
_DISTINCT = (
    ("{name} likes {tool}.", "{name} was born in {city}.", "{name} has {figure} bicycles."),
    ("{name} pays by invoice.", "{name} travels to {city} in {month}.", "{name} learns {tool}."),
)
_TEMPLATES: dict[Label, tuple[tuple[str, ...], ...]] = {
    "merge": _MERGE,
    "contradiction": _CONTRADICTION,
    "distinct": _DISTINCT,
}


@dataclass(frozen=True, slots=True)
class LabelledMemory:
    """A memory, and the details that a consolidation must keep.

    Attributes:
        details: Words of the content that represent its statement.
    """

    id: str
    content: str
    details: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Memories of one subject, and the label of their correct consolidation."""

    label: Label
    memories: tuple[LabelledMemory, ...]

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the memories in the group."""
        return frozenset(memory.id for memory in self.memories)


def groups(count: int, *, seed: int = 1) -> list[Group]:
    """Generate groups, with the three labels in turn. Each group is about a different person.

    Args:
        count: Number of groups, 1..120.
    """
    generator = random.Random(seed)
    names = [f"{first} {last}" for first in _FIRST for last in _LAST]
    generator.shuffle(names)
    labels: tuple[Label, ...] = ("merge", "contradiction", "distinct")
    return [_group(generator, labels[number % len(labels)], name, number) for number, name in enumerate(names[:count])]


def batches(made: Sequence[Group], *, size: int, seed: int = 1) -> Iterator[list[Group]]:
    """Yield whole groups in batches of at most `size` memories, in a random order that the seed determines."""
    batch: list[Group] = []
    for group in random.Random(seed).sample(list(made), len(made)):
        if sum(len(member.memories) for member in (*batch, group)) > size:
            yield batch
            batch = []
        batch.append(group)
    if batch:
        yield batch


def _group(generator: random.Random, label: Label, name: str, number: int) -> Group:
    template = generator.choice(_TEMPLATES[label])
    city, other_city = generator.sample(_CITIES, 2)
    words = {
        "name": name,
        "city": city,
        "other_city": other_city,
        "tool": generator.choice(_TOOLS),
        "month": generator.choice(_MONTHS),
        "year": str(generator.randint(2011, 2025)),
        # Unique for each group.
        "figure": str(20 + number),
    }
    memories = [
        LabelledMemory(
            id=f"{number:03}-{place}",
            content=sentence.format(**words),
            details=tuple(word for key, word in words.items() if key != "name" and f"{{{key}}}" in sentence),
        )
        for place, sentence in enumerate(template)
    ]
    return Group(label, tuple(memories))

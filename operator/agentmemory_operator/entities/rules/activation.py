"""How far the names of a query activate others, and the memories that bear them. Pure.

A name of the query has the activation 1. Along a link it falls by a factor, less along a typed relation, in proportion
to the link's strength, of which five is all; beyond some links, and below a floor, nothing is activated. A memory has
the sum of its names. The figures are the object's, by default those of the design (docs/presets.md).
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from agentmemory_operator.entities.rules.extract import mentioned, occurrences
from agentmemory_operator.entities.rules.graph import ScopeGraph
from agentmemory_operator.entities.rules.lists import EntityLists, word_starts
from agentmemory_operator.memories.rules.entities import fold
from agentmemory_operator.spec.effective.entities import Spreading

WHOLE_STRENGTH = 5
"""A link of this strength, or a stronger one, passes all that the figures let it."""

DESIGN = Spreading()

QUERY_CHARS = 4_000
"""Of a query so much is searched for names."""

SEEDS_MAX, ACTIVATED_MAX = 16, 32
LINKS_MAX = 200
"""Of one name so many links are followed, typed ones first, then the strongest."""

FOUND_MAX = 100
"""Memories of the path along entities."""


def seeds_of(graph: ScopeGraph, text: str, lists: EntityLists) -> list[str]:
    """The names of a scope that a text speaks of, folded, by their aliases in that scope too."""
    text = text[:QUERY_CHARS]
    words = word_starts(text)
    spelt = (graph.spellings.spellings[spelling].name for _, spelling in occurrences(text, words, graph.spellings))
    known = (graph.sheet.resolve(entity.name) for entity in mentioned(text, lists))
    found = dict.fromkeys(fold(name) for names in (spelt, known) for name in names)
    return list(islice((key for key in found if key in graph.nodes), SEEDS_MAX))


def activated(graph: ScopeGraph, seeds: Iterable[str], figures: Spreading = DESIGN) -> dict[str, float]:
    """The activation of each name that is reached, at most 32 of them."""
    reached = dict.fromkeys(seeds, 1.0)
    edge = dict(reached)
    for _ in range(figures.max_depth):
        following: dict[str, float] = {}
        for key, activation in edge.items():
            for link in islice(graph.links_of(key), LINKS_MAX):
                strength = min(link.strength / WHOLE_STRENGTH, 1.0)
                passed = activation * (figures.decay * strength * (figures.typed_boost if link.is_typed else 1.0))
                if passed >= figures.min_activation and link.target not in reached:
                    following[link.target] = max(following.get(link.target, 0.0), passed)
        room = max(0, ACTIVATED_MAX - len(reached))
        edge = dict(heapq.nlargest(room, following.items(), key=lambda pair: (pair[1], pair[0])))
        reached |= edge
    return reached


def found_along(graph: ScopeGraph, activations: Mapping[str, float]) -> list[tuple[str, float]]:
    """The memories that bear activated names, the most activated first, of equal ones the newest; at most 100."""
    sums: defaultdict[int, float] = defaultdict(float)
    for key, activation in activations.items():
        for place in graph.nodes[key].memories:
            sums[place] += activation
    best = heapq.nlargest(FOUND_MAX, sums.items(), key=lambda pair: (pair[1], -pair[0]))
    return [(graph.memory_ids[place], activation) for place, activation in best]


def found_by_query(
    graphs: Sequence[ScopeGraph], text: str, lists: EntityLists, figures: Spreading = DESIGN
) -> dict[str, float]:
    """The memories that a query's names lead to, each scope by itself; the best of all, at most 100."""
    found: list[tuple[str, float]] = []
    for graph in graphs:
        found += found_along(graph, activated(graph, seeds_of(graph, text, lists), figures))
    return dict(sorted(found, key=lambda one: -one[1])[:FOUND_MAX])

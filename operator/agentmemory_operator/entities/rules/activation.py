"""Spreading activation: rank memories by the names that a query activates directly or over links.

1. Each name in the query has activation 1.
2. A link passes on activation * decay * min(strength / 5, 1), multiplied by a boost for a typed relation. A name keeps
   the activation of the shortest path, and the largest one if there are several.
3. Spreading ends after `max_depth` links, below `min_activation`, and at 32 names.
4. A memory has the sum of the activations of its names.

The parameters come from the object; the defaults are in docs/presets.md.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from agentmemory_operator.entities.rules.extract import find_mentions, find_occurrences
from agentmemory_operator.entities.rules.graph import ScopeGraph
from agentmemory_operator.entities.rules.lists import EntityLists, word_spans
from agentmemory_operator.memories.rules.entities import fold
from agentmemory_operator.spec.effective.entities import Spreading

FULL_STRENGTH = 5
"""Strength from which a link passes on the full share."""

DEFAULT_SPREADING = Spreading()

MAX_QUERY_CHARS = 4_000
"""Maximum number of characters of a query that are searched for names."""

MAX_SEEDS, MAX_ACTIVATED = 16, 32
MAX_LINKS = 200
"""Maximum number of links followed from one name: typed relations first, then names mentioned with it most often."""

MAX_FOUND_MEMORIES = 100
"""Maximum number of memories found through entities."""


def find_seeds(graph: ScopeGraph, text: str, lists: EntityLists) -> list[str]:
    """Return the entities of a scope that a text names, by folded name; at most 16. Aliases of the scope count."""
    text = text[:MAX_QUERY_CHARS]
    words = word_spans(text)
    scope_names = (graph.spellings.spellings[form].name for _, form in find_occurrences(text, words, graph.spellings))
    mentioned_names = (graph.sheet.resolve(entity.name) for entity in find_mentions(text, lists))
    found = dict.fromkeys(fold(name) for names in (scope_names, mentioned_names) for name in names)
    return list(islice((key for key in found if key in graph.nodes), MAX_SEEDS))


def spread_activation(
    graph: ScopeGraph, seeds: Iterable[str], figures: Spreading = DEFAULT_SPREADING
) -> dict[str, float]:
    """Return the activation of each reached name, at most 32.

    Args:
        seeds: Folded names with activation 1.
        figures: Parameters of the object.
    """
    reached = dict.fromkeys(seeds, 1.0)
    frontier = dict(reached)
    for _ in range(figures.max_depth):
        next_frontier: dict[str, float] = {}
        for key, activation in frontier.items():
            for link in islice(graph.links_of(key), MAX_LINKS):
                strength = min(link.strength / FULL_STRENGTH, 1.0)
                propagated = activation * (figures.decay * strength * (figures.typed_boost if link.is_typed else 1.0))
                if propagated >= figures.min_activation and link.target not in reached:
                    next_frontier[link.target] = max(next_frontier.get(link.target, 0.0), propagated)
        capacity = max(0, MAX_ACTIVATED - len(reached))
        frontier = dict(heapq.nlargest(capacity, next_frontier.items(), key=lambda pair: (pair[1], pair[0])))
        reached |= frontier
    return reached


def rank_memories(graph: ScopeGraph, activations: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the memories with activated names, the most activated first, then the newest; at most 100."""
    sums: defaultdict[int, float] = defaultdict(float)
    for key, activation in activations.items():
        for index in graph.nodes[key].memories:
            sums[index] += activation
    best = heapq.nlargest(MAX_FOUND_MEMORIES, sums.items(), key=lambda pair: (pair[1], -pair[0]))
    return [(graph.memory_ids[index], activation) for index, activation in best]


def find_by_query(
    graphs: Sequence[ScopeGraph], text: str, lists: EntityLists, figures: Spreading = DEFAULT_SPREADING
) -> dict[str, float]:
    """Return the activation of the memories linked to a query's names, by id, highest first; at most 100.

    Each scope has its own graph: activation does not spread between scopes.
    """
    found: list[tuple[str, float]] = []
    for graph in graphs:
        found += rank_memories(graph, spread_activation(graph, find_seeds(graph, text, lists), figures))
    return dict(sorted(found, key=lambda pair: -pair[1])[:MAX_FOUND_MEMORIES])

"""Place the names of a graph: those that are related attract, and all repel each other."""

import cmath
import math
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

WIDTH, HEIGHT, MARGIN = 960, 600, 70
STEPS = 120
FIRST_STEP = 60.0
GRAVITY = 0.6


def lay_out(entities: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """Return nodes with positions, and edges between them with the positions of both ends.

    The positions are the same for the same names: it starts from a circle, and uses no random numbers.
    """
    names = {entity["name"]: number for number, entity in enumerate(entities)}
    links: dict[tuple[int, ...], str] = {}
    for entity in entities:
        for neighbour in entity["neighbours"]:
            if neighbour["name"] in names and neighbour["name"] != entity["name"]:
                ends = tuple(sorted((names[entity["name"]], names[neighbour["name"]])))
                links.setdefault(ends, neighbour["relation"])
    places = _relax(len(names), list(links))
    nodes = [
        entity | {"x": round(x, 1), "y": round(y, 1), "radius": 6 + min(14, 3 * math.sqrt(entity["memories"] or 1))}
        for entity, (x, y) in zip(entities, places, strict=True)
    ]
    edges = [
        {"source": nodes[first], "target": nodes[second], "relation": relation}
        for (first, second), relation in links.items()
    ]
    return nodes, edges


def _relax(count: int, links: list[tuple[int, ...]]) -> list[tuple[float, float]]:
    """Move the nodes by the method of Fruchterman and Reingold, with steps that become shorter."""
    turn, middle = 2 * math.pi / max(count, 1), complex(WIDTH / 2, HEIGHT / 2)
    places = [middle + cmath.rect(200, number * turn) for number in range(count)]
    distance = math.sqrt(WIDTH * HEIGHT / max(count, 1)) * 0.6
    for step in range(STEPS):
        forces = [sum((_push(place, other, distance) for other in places), 0j) for place in places]
        # Pull to the middle, or names without relations would end in the corners.
        forces = [force + (middle - place) * GRAVITY for force, place in zip(forces, places, strict=True)]
        for first, second in links:
            pull = places[second] - places[first]
            pull *= abs(pull) / distance
            forces[first] += pull
            forces[second] -= pull
        limit = FIRST_STEP * (1 - step / STEPS)
        places = [_bounded(place + _cut(force, limit)) for place, force in zip(places, forces, strict=True)]
    return [(place.real, place.imag) for place in places]


def _push(place: complex, other: complex, distance: float) -> complex:
    apart = place - other
    return apart / abs(apart) ** 2 * distance**2 if apart else 0j


def _cut(force: complex, limit: float) -> complex:
    return force if abs(force) <= limit else force / abs(force) * limit


def _bounded(place: complex) -> complex:
    x = min(max(place.real, MARGIN), WIDTH - MARGIN)
    return complex(x, min(max(place.imag, MARGIN), HEIGHT - MARGIN))

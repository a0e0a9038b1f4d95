"""Find the API path that an unknown path was probably meant to be, comparing them part by part."""

import difflib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from urllib.parse import quote

# Limits of a path to align with the templates: that takes long, and unauthenticated callers can request any path.
MAX_PARTS, MAX_PART_CHARS = 10, 32
# Minimum similarity (difflib, at most 1.0) of two names that may be the same one misspelt.
_MIN_SIMILARITY = 0.7
_MISSING_COST, _LEFT_OVER_COST, _VALUE_COST, _OTHER_COST, _MAX_COST = 0.5, 0.6, 0.05, 9.0, 1.5

Parts = tuple[str, ...]


def nearest_path(path: str, templates: Iterable[str]) -> str:
    """Return the path of the most similar template, filled with the values of this path.

    Values that the path lacks stay `{name}`. If no template is similar, or the path is too long to compare, return the
    path's longest prefix of at most `MAX_PARTS` parts that fits a template, or "/".

    Args:
        templates: Paths with `{name}` for values.
    """
    parts = _parts(path)
    split_templates = [_parts(template) for template in templates]
    if len(parts) <= MAX_PARTS and all(len(part) <= MAX_PART_CHARS for part in parts):
        cost, nearest = min((_aligned(parts, template) for template in split_templates), default=(_OTHER_COST, ()))
        if cost <= _MAX_COST:
            return _written(nearest)
    for length in range(min(len(parts), MAX_PARTS), 0, -1):
        if any(_fits(parts[:length], template) for template in split_templates):
            return _written(parts[:length])
    return "/"


def _aligned(parts: Parts, template: Parts) -> tuple[float, Parts]:
    """Align a path with a template; return the cost, and the template filled with the path's values.

    The template's last name must occur. Its other parts may be missing in the path, and parts of the path may be
    ignored.
    """
    names = [index for index, part in enumerate(template) if not _is_value(part)]
    # Cheapest alignment by the number of parts of the path that are used.
    reached: dict[int, tuple[float, Parts]] = {0: (0.0, ())}
    for index, part in enumerate(template):
        following: dict[int, tuple[float, Parts]] = {}
        _skip_parts(reached, parts)
        for used, (cost, aligned) in reached.items():
            if index != names[-1]:
                _offer(following, used, (cost + _MISSING_COST, (*aligned, part)))
            if used < len(parts):
                step, text = _step(parts[used], part)
                _offer(following, used + 1, (cost + step, (*aligned, text)))
        reached = following
    _skip_parts(reached, parts)
    return reached.get(len(parts), (_OTHER_COST, ()))


def _skip_parts(reached: dict[int, tuple[float, Parts]], parts: Parts) -> None:
    """Allow parts of the path to be ignored, at a cost."""
    for used in range(len(parts)):
        if used in reached:
            cost, aligned = reached[used]
            _offer(reached, used + 1, (cost + _LEFT_OVER_COST, aligned))


def _offer(reached: dict[int, tuple[float, Parts]], used: int, alignment: tuple[float, Parts]) -> None:
    reached[used] = min(reached.get(used, alignment), alignment)


def _step(path_part: str, part: str) -> tuple[float, str]:
    if _is_value(part):
        return _VALUE_COST, path_part
    likeness = _likeness(path_part.lower(), part)
    return (1 - likeness if likeness >= _MIN_SIMILARITY else _OTHER_COST), part


@lru_cache(maxsize=4096)
def _likeness(text: str, name: str) -> float:
    return difflib.SequenceMatcher(None, text, name).ratio()


def _fits(parts: Parts, template: Parts) -> bool:
    return len(parts) == len(template) and all(
        _is_value(expected) or part == expected for part, expected in zip(parts, template, strict=True)
    )


def _parts(path: str) -> Parts:
    return tuple(part for part in path.split("/") if part)


def _is_value(part: str) -> bool:
    return part.startswith("{")


def _written(parts: Sequence[str]) -> str:
    return "/" + "/".join(part if _is_value(part) else quote(part[:MAX_PART_CHARS], safe=":@") for part in parts)

"""The parts of pages that are computed: differences, bars, weights, and the layout of a graph."""

import math

import pytest

from agentmemory_operator.entrypoints.api.ui.graph_layout import HEIGHT, WIDTH, lay_out
from agentmemory_operator.entrypoints.api.ui.memory_pages import MAX_DIFF_CHARS, MAX_VERSIONS, list_versions
from agentmemory_operator.entrypoints.api.ui.pages import render_when, to_time
from agentmemory_operator.entrypoints.api.ui.score_bars import build_bars, read_weights
from agentmemory_operator.entrypoints.api.ui.word_diff import MAX_CHARS, diff_words


@pytest.mark.parametrize(
    ("before", "after", "pieces"),
    [
        ("a b c", "a x c", [("same", "a "), ("removed", "b"), ("added", "x"), ("same", " c")]),
        ("", "a", [("added", "a")]),
        ("a", "a", [("same", "a")]),
        ("a" * (MAX_CHARS + 1), "a", []),
        ("a " * 600, "a", []),
        # Equal spaces alone are no equal part, and comparing words that repeat often takes seconds.
        ("a b c", "x y z", [("removed", "a b c"), ("added", "x y z")]),
        ("a " * 101, "a " * 100, []),
    ],
)
def test_a_difference_has_the_pieces_of_both_texts(before: str, after: str, pieces: list[tuple[str, str]]) -> None:
    assert diff_words(before, after) == pieces


@pytest.mark.parametrize(
    ("sliders", "weights"),
    [
        (("50", "30", "20"), (0.5, 0.3, 0.2)),
        (("1", "1", "1"), (0.333, 0.333, 0.334)),
        (("900", "0", "0"), (1, 0, 0)),
        (("0", "0", "0"), None),
        (("nan", "1", "1"), None),
        (("x", "1", "1"), None),
    ],
)
def test_weights_add_up_to_one(sliders: tuple[str, ...], weights: tuple[float, ...] | None) -> None:
    read = read_weights(dict(zip(("w_similarity", "w_recency", "w_utility"), sliders, strict=True)))

    assert read == (weights and dict(zip(("similarity", "recency", "utility"), weights, strict=True)))


def test_the_versions_of_a_page_are_bounded() -> None:
    versions = [{"content": f"{number} " + f"w{number} " * 90 + "x" * 3_000} for number in range(MAX_VERSIONS + 50)]

    rows = list_versions(versions)

    assert [row["memory"]["content"].split()[0] for row in rows] == [str(number) for number in range(149, 49, -1)]
    compared = [bool(row["diff"]) for row in rows]
    assert compared == [True] * compared.count(True) + [False] * compared.count(False)
    assert 0 < compared.count(True) * 2 * 3_300 <= MAX_DIFF_CHARS


def test_a_short_version_has_its_difference() -> None:
    rows = list_versions([{"content": "a b"}, {"content": None}, {"content": "a c"}])

    assert [row["diff"] for row in rows] == [[("added", "a c")], [("removed", "a b")], None]


def test_a_bar_is_as_long_as_its_score() -> None:
    """Negative terms shorten the others. A boost makes the bar longer."""
    terms = ({"a": 2, "b": 2}, {"a": -1, "b": 2}, {"a": -2, "b": 1}, {"a": 1, "b": 1})
    scores = (4, 1, -1, 3)
    results = [
        {"explain": {"weights": None, "terms": each, "score": score}} for each, score in zip(terms, scores, strict=True)
    ]

    bars, legend = build_bars(results, {})

    assert [[(part.x, part.width) for part in bar] for bar in bars] == [
        [(0, 50), (50, 50)],
        [(0, 0), (0, 25)],
        [(0, 0), (0, 0)],
        [(0, 37.5), (37.5, 37.5)],
    ]
    assert legend == ["a", "b"]


def test_no_results_have_no_bars() -> None:
    assert build_bars([], {}) == ([], [])


def test_a_graph_is_laid_out_within_its_frame() -> None:
    names = [f"n{number}" for number in range(40)]
    entities = [
        {"name": name, "memories": 1, "neighbours": [{"name": other, "relation": "knows"} for other in names[:3]]}
        for name in names
    ]

    nodes, edges = lay_out(entities)

    assert all(0 < node["x"] < WIDTH and 0 < node["y"] < HEIGHT for node in nodes)
    assert all(math.isfinite(node["x"] + node["y"]) for node in nodes)
    assert len({(node["x"], node["y"]) for node in nodes}) == 40
    assert len(edges) == 3 * 37 + 3
    assert lay_out(entities) == (nodes, edges)


def test_an_empty_graph_has_no_places() -> None:
    assert lay_out([]) == ([], [])


def test_a_text_that_is_no_time_stays_as_it_is() -> None:
    assert (render_when(None), render_when("soon"), render_when("2026-03-03T10:00:00Z")) == (
        *("-", "soon", "2026-03-03 10:00"),
    )


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("", None),
        ("2026-03-03", "2026-03-03T23:59:59+00:00"),
        ("2026-03-03T10:00", "2026-03-03T10:00:00+00:00"),
        ("2026-03-03T10:00:00+02:00", "2026-03-03T10:00:00+02:00"),
        ("soon", "soon"),
    ],
)
def test_a_day_means_its_end(text: str, time: str | None) -> None:
    assert to_time(text) == time

import pytest

from agentmemory_operator.spec.canonical_names import did_you_mean, nearest_name, unknown_field

FIELDS = ("halfLifeDays", "top_k", "connectionRef", "m")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("half_life_days", "halfLifeDays"),
        ("HALFLIFEDAYS", "halfLifeDays"),
        ("halfLifeDay", "halfLifeDays"),
        ("topK", "top_k"),
        ("connection-ref", "connectionRef"),
        ("M", "m"),
        ("colour", None),
        ("", None),
        ("h" * 10_000, None),
    ],
)
def test_nearest_name_is_found(name: str, expected: str | None) -> None:
    assert nearest_name(name, FIELDS) == expected


@pytest.mark.parametrize(
    ("value", "question"), [("Top_K", "; did you mean top_k?"), ("top_k", ""), (7, ""), (None, "")]
)
def test_only_unknown_text_gets_a_suggestion(value: object, question: str) -> None:
    assert did_you_mean(value, FIELDS) == question


def test_similar_name_elsewhere_is_suggested_first() -> None:
    message = unknown_field("limits", ("top_k", "limit"), {"limits": ("top_k",)})

    assert message == "unknown; did you mean top_k?; known are top_k, limit"

import pytest

from agentmemory_operator.spec.nearest import did_you_mean, nearest_name, unknown_field

FIELDS = ("halfLifeDays", "top_k", "connectionRef", "m")


@pytest.mark.parametrize(
    ("name", "meant"),
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
def test_the_name_that_was_likely_meant(name: str, meant: str | None) -> None:
    assert nearest_name(name, FIELDS) == meant


@pytest.mark.parametrize(
    ("value", "question"), [("Top_K", "; did you mean top_k?"), ("top_k", ""), (7, ""), (None, "")]
)
def test_only_a_text_that_is_not_known_is_asked_about(value: object, question: str) -> None:
    assert did_you_mean(value, FIELDS) == question


def test_names_of_others_come_first() -> None:
    said = unknown_field("limits", ("top_k", "limit"), {"limits": ("top_k",)})

    assert said == "unknown; did you mean top_k?; known are top_k, limit"

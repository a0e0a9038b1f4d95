"""Grounding: numbers, dates and names without a source are reported, other words and spellings are not."""

import pytest

from agentmemory_operator.consolidation.rules.grounding import find_ungrounded


@pytest.mark.parametrize(
    ("statement", "sources"),
    [
        ("Ada lives in Rome.", ["I moved to Rome last year", "Ada"]),
        ("The user lives in Rome.", ["I live in Rome"]),
        ("Lives in Rome", ["she is living in Rome"]),
        ("Moved to Rome in May 2026.", ["moved to Rome on 2026-05-03"]),
        ("Moved to Rome in May 2026.", ["moved to Rome in 2026-05"]),
        ("It happened on 2026-05-03.", ["on May 3, 2026"]),
        ("The order is of 1,000 items.", ["1000 items please"]),
        ("The order is of 1000 items.", ["1,000 items please"]),
        ("Has 2 cats.", ["I have two cats"]),
        ("Has two cats.", ["I have 2 cats"]),
        ("The flight leaves at 7:05.", ["leaves 07:05"]),
        ("Costs 19.99 euros", ["it is 19.99"]),
        ("Ada's team uses Kubernetes.", ["my team at work uses kubernetes", "Ada"]),
        ("Prefers PostgreSQL over MySQL", ["I'd take postgresql rather than mysql"]),
        ("One of the users likes tea. First, tea.", ["somebody likes tea"]),
        ("Works with Jean-Luc.", ["Jean-Luc is my colleague"]),
        ("Löwe wohnt in Köln", ["ich, Löwe, wohne in Köln"]),
        ("東京に住んでいる", ["東京"]),
        ("", []),
    ],
)
def test_statement_from_sources_is_grounded(statement: str, sources: list[str]) -> None:
    assert find_ungrounded(statement, sources) == ()


@pytest.mark.parametrize(
    ("statement", "sources", "missing"),
    [
        ("Ada lives in Paris.", ["Ada lives in Rome"], ("Paris",)),
        ("Bob lives in Rome.", ["Ada lives in Rome"], ("Bob",)),
        ("Ada has 3 cats.", ["Ada has two cats"], ("3",)),
        ("Ada has three cats.", ["Ada has two cats"], ("three",)),
        ("Moved in June 2026.", ["moved in May 2026"], ("June",)),
        ("Moved on 2026-05-04.", ["moved on 2026-05-03"], ("2026-05-04",)),
        ("Costs 19.95 euros", ["it is 19.99"], ("19.95",)),
        ("The key is sk-4711.", ["the key is secret"], ("sk-4711",)),
        ("Uses PostgreSQL", ["uses a database"], ("PostgreSQL",)),
        ("Ada met Grace. Grace left.", ["Ada met somebody"], ("Grace",)),
        ("Call 555-0199", ["call 555-0100"], ("555-0199",)),
        ("Ada Lovelace-King", ["Ada Lovelace"], ("Lovelace-King",)),
    ],
)
def test_ungrounded_parts_are_listed(statement: str, sources: list[str], missing: tuple[str, ...]) -> None:
    assert find_ungrounded(statement, sources) == missing


def test_long_text_takes_linear_time() -> None:
    assert find_ungrounded("Ada " * 20_000, ["Ada " * 20_000]) == ()

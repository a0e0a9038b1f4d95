"""Evidence terms in addition to vector and keyword scores, over a real engine: the oracle reproduces its scores."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.search.answers import SearchAnswer
from agentmemory_operator.spec.expression.typing import check_expression
from agentmemory_operator.spec.presets import Weights
from agentmemory_operator.spec.presets.table import EvidenceWeights, Fusion
from tests.support.engine.agents import EVERYTHING, World, open_world, search_request, vector_of

SOURCE = KeywordSource(language="english", window=2)
BY_MATCH = replace(EVERYTHING, weights=Weights(1, 0, 0), evidence=EvidenceWeights(terse=0.25, author=0.05, time=0.1))
ALL = EvidenceWeights(terse=0.3, author=0.2, time=0.15, asked=0.1, date=0.25, assistant=0.4)
QUESTIONS = (
    "When did Ann see the apples?",
    "what did i say of apples in 2023",
    "which apples were red three days ago",
    "How do red green yellow blue pink grey apples and pears and plums taste?",
    "apples",
)
MESSAGES = (
    ("Who saw the apples?", "Ann", "user"),
    ("I saw the apples yesterday, green ones and red ones and a yellow pear", "Bob Lee", "user"),
    ("Apples are fruit of trees of the genus Malus, in thousands of cultivars", None, "assistant"),
    ("on 3 May 2021 I ate some", "Ann", "user"),
    ("bread", None, None),
)


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url, keyword=SOURCE) as world:
        for number, (content, speaker, role) in enumerate(MESSAGES):
            at = world.clock.now_ms() - (len(MESSAGES) - number) * 86_400_000
            await world.add(content, created_at=at, session_id="s", speaker=speaker, role=role)
        yield world


async def search(world: World, query: str, **more: Any) -> SearchAnswer:
    return await world.recall.search(
        world.agent, search_request(user_id="u", query=query, vector=vector_of("q"), **more)
    )


@pytest.mark.parametrize(
    ("query", "fusion", "evidence"),
    [
        *((query, Fusion(), ALL) for query in QUESTIONS),
        *((QUESTIONS[0], Fusion(method="RRF", keyword_weight=0.5), weights) for weights in (ALL, BY_MATCH.evidence)),
        (QUESTIONS[1], Fusion(), BY_MATCH.evidence),
        (QUESTIONS[3], Fusion(method="RRF", keyword_weight=0.5), EvidenceWeights()),
    ],
)
async def test_terms_reproduce_the_score(world: World, query: str, fusion: Fusion, evidence: EvidenceWeights) -> None:
    world.set_ranking(replace(EVERYTHING, fusion=fusion, evidence=evidence))

    answer = await search(world, query, explain=True)

    assert len(answer.results) == len(MESSAGES)
    for found in answer.results:
        assert found.terms is not None
        assert found.match is not None
        assert found.match.evidence is not None
        assert found.terms.score == pytest.approx(found.score, abs=1e-5)
        assert -1 <= found.match.fused <= 1


@pytest.mark.parametrize("query", QUESTIONS)
async def test_expression_reads_evidence_terms(world: World, query: str) -> None:
    text = "0.3*similarity + 0.7*keyword + 0.2*terse + 0.1*author + time/8 + 0.05*asked + 0.02*date"
    world.set_ranking(replace(EVERYTHING, evidence=ALL, model=check_expression(text, EVERYTHING.types, "Cosine")))

    answer = await search(world, query, explain=True)

    for found in answer.results:
        assert found.terms is not None
        assert found.terms.score == pytest.approx(found.score, abs=1e-5)
        assert found.match is not None
        assert found.match.evidence is None


async def test_evidence_breaks_ties(world: World) -> None:
    world.set_ranking(replace(BY_MATCH, fusion=Fusion(keyword_weight=0.0), evidence=EvidenceWeights(author=1.0)))

    answer = await search(world, "What did Bob eat?", explain=True)

    assert answer.results[0].record.speaker == "Bob Lee"
    assert [found.match.evidence["author"] for found in answer.results if found.match and found.match.evidence] == [
        1.0,
        *[0.0] * 4,
    ]


def dates_of(answer: SearchAnswer) -> dict[str, float]:
    """Return the term `date` of each result by the first word of its content."""
    return {
        found.record.content.split()[0]: found.match.evidence["date"]
        for found in answer.results
        if found.match and found.match.evidence
    }


async def test_date_is_half_shortly_before_and_after(world: World) -> None:
    world.set_ranking(replace(BY_MATCH, fusion=Fusion(keyword_weight=1.0), evidence=EvidenceWeights(date=1.0)))

    answer = await search(world, "What was there three days ago?", explain=True)

    assert dates_of(answer) == {"Who": 0.0, "I": 0.5, "Apples": 1.0, "on": 0.5, "bread": 0.0}
    assert answer.results[0].record.content.startswith("Apples")
    assert answer.time_spans is not None
    assert [span.words for span in answer.time_spans] == ["three days ago"]
    for found in answer.results:
        assert found.terms is not None
        assert found.terms.score == pytest.approx(found.score, abs=1e-5)


async def test_reference_time_moves_the_named_day(world: World) -> None:
    """The second search has the same words: the day of the first one is not reused."""
    world.set_ranking(replace(BY_MATCH, evidence=EvidenceWeights(date=1.0)))
    query, day_before = "What was there yesterday?", world.clock.now_ms() - 86_400_000

    today = await search(world, query, explain=True)
    earlier = await search(world, query, explain=True, reference_time=day_before)

    assert dates_of(today) == {"Who": 0.0, "I": 0.0, "Apples": 0.0, "on": 0.5, "bread": 1.0}
    assert dates_of(earlier) == {"Who": 0.0, "I": 0.0, "Apples": 0.5, "on": 1.0, "bread": 0.5}


@pytest.mark.parametrize(("is_indexed", "date"), [(True, 1.0), (False, 0.0)])
async def test_date_counts_valid_from_if_indexed(world: World, is_indexed: bool, date: float) -> None:
    indexes = dict(world.agent.settings.indexes) | ({"validFrom": "integer"} if is_indexed else {})
    world.agent = replace(world.agent, settings=replace(world.agent.settings, indexes=indexes))
    world.set_ranking(replace(BY_MATCH, evidence=EvidenceWeights(date=1.0)))
    long_ago = world.clock.now_ms() - 400 * 86_400_000
    await world.add("since then", valid_from=long_ago)

    answer = await search(world, "then", explain=True, reference_time=long_ago + 86_400_000)
    named = await search(world, "yesterday", explain=True, reference_time=long_ago + 86_400_000)

    assert dates_of(answer)["since"] == 0.0
    assert dates_of(named)["since"] == date
    assert all(found.terms and abs(found.terms.score - found.score) < 1e-5 for found in named.results)


async def test_vector_search_has_no_evidence(world: World) -> None:
    world.set_ranking(BY_MATCH)

    answer = await search(world, "When did Ann see the apples?", hybrid=False, explain=True)

    assert all(found.match and found.match.fused == found.match.similarity for found in answer.results)


async def test_own_words_outweigh_window_words(world: World) -> None:
    world.set_ranking(replace(BY_MATCH, fusion=Fusion(keyword_weight=1.0), evidence=EvidenceWeights()))

    answer = await search(world, "genus", explain=True)

    keywords = {found.record.content: found.match.keyword for found in answer.results if found.match}
    own, next_, after, before = (keywords[MESSAGES[n][0]] or 0.0 for n in (2, 3, 4, 1))
    assert own > next_ > after > before == 0.0


async def test_window_text_is_truncated(world: World) -> None:
    """The last words of a neighbour are not in the keyword text."""
    long = " ".join(f"word{n}" for n in range(40))
    await world.add(long, session_id="t", created_at=world.clock.now_ms() - 1000)
    await world.add("short", session_id="t")
    world.set_ranking(BY_MATCH)

    answers = [await search(world, f"word{n}", explain=True) for n in (0, 39)]

    found = [{f.record.content for f in a.results if f.match and f.match.keyword} for a in answers]
    assert found == [{long, "short"}, {long}]
    points, _ = await world.agent.store.scroll(world.agent.alias, {"limit": 10, "with_vector": [KEYWORD_VECTOR]})
    assert all(point["vector"] for point in points)

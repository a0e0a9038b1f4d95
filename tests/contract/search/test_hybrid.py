"""Hybrid search by vector and keywords over a real engine, in one request."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.search.answers import SearchAnswer
from agentmemory_operator.search.rules import candidates
from agentmemory_operator.search.rules.candidates import Budget, HybridBudget
from agentmemory_operator.search.rules.hybrid import keyword_term
from agentmemory_operator.search.rules.query_features import HALF_SCORE, QueryFeatures
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.presets import Weights
from agentmemory_operator.spec.presets.table import Effort, Fusion
from tests.support.engine.agents import EVERYTHING, World, open_world, search_request, vector_of

BY_SIMILARITY = replace(EVERYTHING, weights=Weights(1, 0, 0))
FRUIT = ("apple pie", "pear tart", "plum cake", "green apple", "cherry pie", "grape", "an apple a day", "bread")


def with_fusion(fusion: Fusion, ranking: Ranking = BY_SIMILARITY, **more: Any) -> Ranking:
    return replace(ranking, fusion=fusion, **more)


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url, keyword=KeywordSource(language="english", window=2)) as world:
        for number, content in enumerate(FRUIT):
            await world.add(content, created_at=world.clock.now_ms() - number * 86_400_000, importance=number / 10)
        world.set_ranking(with_fusion(Fusion()))
        yield world


async def search(world: World, query: str | None = "apples", near: str = "q", **more: Any) -> SearchAnswer:
    request = search_request(user_id="u", query=query, vector=vector_of(near), **more)
    return await world.recall.search(world.agent, request)


def contents(answer: SearchAnswer) -> list[str]:
    return [found.record.content for found in answer.results]


async def test_full_keyword_weight_orders_by_words(world: World) -> None:
    world.set_ranking(with_fusion(Fusion(keyword_weight=1.0)))

    answer = await search(world)

    assert set(contents(answer)[:3]) == {"apple pie", "green apple", "an apple a day"}
    assert [found.score for found in answer.results[3:]] == [0.0] * 5


@pytest.mark.parametrize(
    ("language", "content", "query"),
    [
        *(
            (language, content, query)
            for content, query, own in [
                ("我每天早上喝咖啡", "咖啡", "chinese"),
                ("私は茶を飲む", "茶", "japanese"),
                ("커피를 매일 마셔요", "커피가 좋아", "korean"),
                ("ฉันดื่มกาแฟทุกเช้า", "กาแฟ", "thai"),
            ]
            for language in ("english", own)
        ),
        ("none", "我每天早上喝咖啡", "咖啡"),
        ("japanese", "新しいiPhoneを買った", "IPHONE"),
    ],
)
async def test_text_without_spaces_is_found(qdrant_url: str, language: str, content: str, query: str) -> None:
    """The text is found with the matching language and with another one."""
    async with open_world(qdrant_url, keyword=KeywordSource(language=language, window=0)) as world:
        world.set_ranking(with_fusion(Fusion(keyword_weight=1.0)))
        for other in (content, "天气很好", "今日は雨です", "날씨가 맑다", "วันนี้ฝนตก", "rain"):
            await world.add(other)

        answer = await search(world, query)

        assert contents(answer)[0] == content
        # Particles that occur in other memories have less weight.
        assert answer.results[0].score > 2 * answer.results[1].score


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("Lena parkte die Räder in der Straße", "Wo ist das Rad in der STRASSE?"),
        ("El apicultor cosecha miel", "¿Quién cosechó la miel?"),
        ("नौकाघर में नावें रखी हैं", "नाव कहाँ रखी है?"),
        ("اشترى سامي السيارة", "سيارة سامي"),
        ("Пасечник собирает мёд", "пасечники"),
        ("我每天早上喝咖啡", "咖啡"),
        ("order A-1138 was late", "A-1138"),
        ("Room \uff12\uff11\uff14 is wet", "214"),
        ("Andre called", "Who is Andre?"),
    ],
)
async def test_auto_finds_every_script_in_one_agent(qdrant_url: str, content: str, query: str) -> None:
    others = (
        "Andres called",
        "order A-1183 was early",
        "room 241",
        "天气很好",
        "идёт дождь",
        "المطر",
        "बारिश",
        "lluvia",
    )
    async with open_world(qdrant_url, keyword=KeywordSource(language="auto", window=0)) as world:
        world.set_ranking(with_fusion(Fusion(keyword_weight=1.0)))
        for other in (content, *others):
            await world.add(other)

        answer = await search(world, query)

        assert contents(answer)[0] == content
        assert answer.results[0].score > answer.results[1].score


@pytest.mark.parametrize("query", ["the of and", "", "\u200f🙂", "!?"])
async def test_auto_query_without_words_uses_the_vector(qdrant_url: str, query: str) -> None:
    async with open_world(qdrant_url, keyword=KeywordSource(language="auto", window=0)) as world:
        world.set_ranking(with_fusion(Fusion()))
        for content in FRUIT:
            await world.add(content)

        assert len(contents(await search(world, query))) == len(FRUIT)


async def test_zero_keyword_weight_orders_by_vector(world: World) -> None:
    world.set_ranking(with_fusion(Fusion(keyword_weight=0.0)))

    assert contents(await search(world)) == contents(await search(world, hybrid=False))


@pytest.mark.parametrize(
    ("distance", "fusion", "candidates"),
    [
        ("Cosine", Fusion(), None),
        ("Cosine", Fusion(method="RRF", keyword_weight=0.5), 3),
        ("Dot", Fusion(keyword_weight=0.2), 3),
        ("Dot", Fusion(method="RRF", k=2), None),
        ("Euclid", Fusion(keyword_weight=0.2), None),
        ("Euclid", Fusion(), 3),
        ("Euclid", Fusion(method="RRF", k=2), 3),
    ],
)
async def test_terms_reproduce_the_score(
    qdrant_url: str, distance: str, fusion: Fusion, candidates: int | None
) -> None:
    source = KeywordSource(language="english", window=2)
    async with open_world(qdrant_url, keyword=source, distance=distance) as world:
        for number, content in enumerate(FRUIT):
            await world.add(content, created_at=world.clock.now_ms() - number * 86_400_000, importance=number / 10)
        world.set_ranking(with_fusion(fusion, EVERYTHING, candidates=candidates))

        answer = await search(world, "apple pies", explain=True, top_k=candidates)

    assert answer.candidates is not None
    assert answer.candidates.is_exact or candidates is not None
    for found in answer.results:
        assert found.terms is not None
        assert found.match is not None
        assert found.terms.score == pytest.approx(found.score, abs=1e-5)
        assert found.match.keyword is not None
        if fusion.method == "Score":
            share = fusion.keyword_weight
            fused = (1 - share) * found.match.similarity + share * found.match.keyword
            assert found.match.fused == pytest.approx(fused, abs=1e-9)


async def test_candidates_are_scored_by_both_signals(world: World) -> None:
    """A memory has the same score in a full scan and in short candidate lists."""
    full_scan = {found.record.id: found.match for found in (await search(world, explain=True, top_k=8)).results}
    world.set_ranking(with_fusion(Fusion(), candidates=2))

    answer = await search(world, explain=True, top_k=2)

    assert answer.candidates is not None
    assert answer.candidates.scored == 4
    for found in answer.results:
        assert found.match is not None
        expected = full_scan[found.record.id]
        assert expected is not None
        assert found.match.similarity == pytest.approx(expected.similarity, abs=1e-5)
        assert found.match.keyword == pytest.approx(expected.keyword, abs=1e-5)


async def test_first_on_both_lists_has_the_best_rank_score(world: World) -> None:
    world.set_ranking(with_fusion(Fusion(method="RRF", keyword_weight=0.7)))

    answer = await search(world, "green apple", near="green apple")

    assert contents(answer)[0] == "green apple"
    assert answer.results[0].score == pytest.approx(1, abs=1e-5)


async def test_fusion_none_searches_by_vector(world: World) -> None:
    world.set_ranking(with_fusion(Fusion(method="None")))

    answer = await search(world, explain=True)

    assert contents(answer) == contents(await search(world, query=None))
    assert all(found.match and found.match.keyword is None for found in answer.results)


async def test_hybrid_false_or_no_query_uses_the_vector(world: World) -> None:
    by_meaning = await search(world, hybrid=False, explain=True)

    assert contents(await search(world, query=None)) == contents(by_meaning)
    assert [found.match.fused for found in by_meaning.results if found.match] == [
        found.match.similarity for found in by_meaning.results if found.match
    ]


async def test_min_similarity_exempts_keyword_matches(world: World) -> None:
    world.set_ranking(with_fusion(Fusion(), min_similarity=0.99))

    answer = await search(world, near="bread")

    assert set(contents(answer)) == {"apple pie", "green apple", "an apple a day", "bread"}


async def test_stop_words_only_query_uses_the_vector(world: World) -> None:
    assert contents(await search(world, "the of and")) == contents(await search(world, hybrid=False))


async def test_other_users_words_are_not_found(world: World) -> None:
    await world.add("apple strudel", user_id="v")

    assert "apple strudel" not in contents(await search(world, top_k=100))


async def test_hybrid_needs_keywords_and_query(qdrant_url: str, world: World) -> None:
    with pytest.raises(RequestInvalid) as no_query:
        await search(world, query=None, hybrid=True)
    async with open_world(qdrant_url) as plain:
        with pytest.raises(RequestInvalid) as no_keywords:
            await plain.recall.search(plain.agent, search_request(user_id="u", vector=vector_of("q"), hybrid=True))

    assert [error.field for error in no_query.value.errors] == ["query"]
    assert [error.field for error in no_keywords.value.errors] == ["hybrid"]
    assert "index.keyword.enabled" in no_keywords.value.errors[0].message


@pytest.mark.parametrize(("score", "keyword"), [(0.0, 0.0), (10.0, 0.5), (20.0, 0.75), (100.0, 0.9990234375)])
def test_bm25_term_saturates(score: float, keyword: float) -> None:
    assert keyword_term(score, QueryFeatures(half_score=HALF_SCORE)) == pytest.approx(keyword)


async def test_short_lists_can_prove_exactness(world: World) -> None:
    world.set_ranking(with_fusion(Fusion(), candidates=4))
    few = await search(world, explain=True, top_k=1)
    world.set_ranking(with_fusion(Fusion(), EVERYTHING, candidates=1))
    fewer = await search(world, explain=True, top_k=1)

    assert few.candidates is not None
    assert fewer.candidates is not None
    assert (few.candidates.is_exact, fewer.candidates.is_exact) == (True, False)


async def test_rank_fusion_of_short_lists_is_not_exact(world: World) -> None:
    world.set_ranking(with_fusion(Fusion(method="RRF"), candidates=4))

    answer = await search(world, explain=True, top_k=1)

    assert answer.candidates is not None
    assert not answer.candidates.is_exact


@pytest.fixture
def short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the efforts lists that are shorter than the fixture's memories."""
    lists = HybridBudget(whole=4, nearest=1, by_words=1)
    shortened = {
        "Fast": Budget(whole=4, scored=4, hybrid=replace(lists, compares_words=False)),
        "Balanced": Budget(whole=4, scored=4, hybrid=lists),
    }
    monkeypatch.setattr(candidates, "BUDGETS", candidates.BUDGETS | shortened)


@pytest.mark.usefixtures("short_lists")
@pytest.mark.parametrize(
    ("effort", "scored", "has_words"), [("Fast", 2, False), ("Balanced", 2, True), ("Exact", 8, True)]
)
async def test_effort_decides_what_is_scored(world: World, effort: Effort, scored: int, *, has_words: bool) -> None:
    """The nearest memory shares a word with the query, and another one shares two."""
    world.set_ranking(with_fusion(Fusion(), effort=effort))

    answer = await search(world, "apple day", near="green apple", explain=True, top_k=1)
    found = answer.results[0]

    assert found.record.content == "green apple"
    assert found.match is not None
    assert found.terms is not None
    assert (found.match.keyword > 0) == has_words
    assert found.score == pytest.approx(found.terms.score, abs=1e-5)
    assert answer.candidates is not None
    assert (answer.candidates.scored, answer.candidates.eligible) == (scored, 8)


@pytest.mark.usefixtures("short_lists")
async def test_candidates_by_words_count_as_below_the_threshold(world: World) -> None:
    world.set_ranking(with_fusion(Fusion(), effort="Balanced"))

    answer = await search(world, "apple day", near="green apple", explain=True, top_k=1, threshold=0.99)

    assert answer.candidates is not None
    assert (answer.candidates.scored, answer.candidates.below_threshold) == (2, 2)

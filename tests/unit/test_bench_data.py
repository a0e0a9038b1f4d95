"""Benchmark conversations in `bench/data`: answerable, unique questions; figures computed from them."""

import json
import re
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from agentmemory_operator.memories.rules.any_language import any_language_text
from bench.dialogues import OWN, QuestionResult, read_set
from bench.evidence import interval, ndcg_rows, rows, variants
from bench.languages import KINDS, figures, language_rows, read_languages
from bench.languages import read_set as read_sentences

Json = dict[str, Any]

FILES = sorted(OWN.glob("*.json"))
TALKS = [talk for file in FILES for talk in json.loads(file.read_text(encoding="utf-8"))["conversations"]]


@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk["id"])
def test_turns_are_ordered_and_named_by_session(talk: Json) -> None:
    turns = talk["turns"]
    ids = [turn["id"] for turn in turns]
    times = [datetime.fromisoformat(turn["at"]) for turn in turns]

    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(rf"{turn['session']}:\d+", turn["id"]) for turn in turns)
    assert times == sorted(set(times))
    assert len({turn["session"] for turn in turns}) >= 4
    assert all(turn["text"].strip() == turn["text"] != "" for turn in turns)


@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk["id"])
def test_evidence_exists(talk: Json) -> None:
    ids = {turn["id"] for turn in talk["turns"]}

    for question in talk["questions"]:
        evidence = question["evidence"]
        assert evidence
        assert len(set(evidence)) == len(evidence)
        assert ids.issuperset(evidence)
        assert question["category"] in range(1, 6)
        assert question["question"].endswith("?")


def test_questions_are_unique() -> None:
    questions = [question["question"].casefold() for talk in TALKS for question in talk["questions"]]

    assert len(set(questions)) == len(questions)
    assert len({talk["id"] for talk in TALKS}) == len(TALKS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_readme_counts_match_data(file: Any) -> None:
    read = read_set(file)
    page = (OWN / "README.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| `{file.name}`"))

    assert row.endswith(f"| {len(read.memories)} | {len(read.questions)} |")


def test_missed_evidence_lowers_recall() -> None:
    found = QuestionResult("u", ranks=[2, 7], missed=1, latency_ms=1.0)
    nothing = QuestionResult("u", ranks=[], missed=1, latency_ms=1.0)

    assert (found.recall(5), found.recall(10), found.reciprocal_rank) == (1 / 3, 2 / 3, 0.5)
    assert (nothing.recall(10), nothing.reciprocal_rank) == (0.0, 0.0)


def test_interval_reflects_spread_of_conversations() -> None:
    assert interval([[0.5, 0.5], [0.5]]) == (0.5, 0.5)
    low, high = interval([[1.0] * 4, [-1.0] * 4, [0.0] * 4])
    assert -1.0 <= low < 0.0 < high <= 1.0


def test_variant_is_compared_with_its_baseline() -> None:
    standard = next(variant for variant in variants() if variant.name == "standard")
    without = next(variant for variant in variants() if variant.name == "without terse")
    better, worse = QuestionResult("u", [1], 0, 1.0), QuestionResult("u", [], 1, 1.0)

    first, second = rows([standard, without], {"standard": [better], "without terse": [worse]})

    assert first == ("standard", "1.000", "1.000", "1.000", "", "", "")
    assert second[4:] == ("standard", "-1.000 (-1.000 to -1.000)", "-1.000 (-1.000 to -1.000)")


def test_ndcg_equals_the_computed_case() -> None:
    """Evidence at ranks 1 and 4, one missed: (1 + 1/log2(5)) / (1 + 1/log2(3) + 1/log2(4))."""
    result = QuestionResult("u", ranks=[1, 4], missed=1, latency_ms=1.0)

    assert result.ndcg(10) == pytest.approx(1.43068 / 2.13093, abs=1e-5)
    assert result.ndcg(3) == pytest.approx(1 / 2.13093, abs=1e-5)
    assert result.ndcg(1) == 1.0


@pytest.mark.parametrize(
    ("ranks", "missed", "expected"),
    [([], 2, 0.0), ([1, 2, 3], 0, 1.0), ([2], 0, 0.63093), ([1, 1], 0, 1.0), (list(range(1, 11)), 5, 1.0)],
)
def test_ndcg_of_bounds(ranks: list[int], missed: int, expected: float) -> None:
    assert QuestionResult("u", ranks, missed, 1.0).ndcg(10) == pytest.approx(expected, abs=1e-5)


def test_ndcg_is_the_mean_of_each_category() -> None:
    found, missed = QuestionResult("u", [1], 0, 1.0, "4"), QuestionResult("u", [], 1, 1.0, "4")
    second = QuestionResult("u", [2], 0, 1.0, "2")

    head, (row,) = ndcg_rows({"standard": [found, missed, second]})

    assert head == ("ranking", "nDCG@10", "mean of categories", "2 (1)", "4 (2)")
    assert row == ("standard", "0.544", "0.565", "0.631", "0.500")


@pytest.mark.parametrize("texts", read_languages(), ids=lambda texts: texts["language"])
def test_language_questions_have_one_answer_and_a_kind(texts: Json) -> None:
    memories, questions = texts["memories"], texts["questions"]
    answers = [question["answer"] for question in questions]

    assert (len(set(memories)), len(set(answers)), len(questions)) == (45, 30, 30)
    assert set(answers) <= set(range(45))
    assert Counter(question["kind"] for question in questions) == dict.fromkeys(KINDS, 10)
    assert len({question["question"] for question in questions}) == 30


@pytest.mark.parametrize("texts", read_languages(), ids=lambda texts: texts["language"])
def test_questions_by_meaning_share_no_content_word(texts: Json) -> None:
    """Questions by meaning share no beginning of a word with their answer; all other questions share one.

    Chinese and Japanese questions may share characters.
    """
    for question in texts["questions"]:
        answer = any_language_text(texts["memories"][question["answer"]])
        common = {*any_language_text(question["question"], is_question=True).split()} & {*answer.split()}
        assert (
            common if question["kind"] != "meaning" else not common or texts["language"] in ("chinese", "japanese")
        ), question


def test_language_rows_are_by_kind_and_of_all() -> None:
    best, worst = QuestionResult("hindi", [1], 0, 1.0, "words"), QuestionResult("arabic", [], 1, 1.0, "words")
    others = [QuestionResult(language, [2], 0, 1.0, kind) for language in ("arabic", "hindi") for kind in KINDS[1:]]

    rows_ = list(language_rows({"auto": [best, worst, *others]}))

    assert [row[:2] for row in rows_] == [(name, kind) for name in ("arabic", "hindi", "all") for kind in KINDS]
    assert rows_[6] == ("all", "words", "0.50 / 0.50 / 0.50")
    assert rows_[7][2] == figures(others) == "0.00 / 1.00 / 0.50"


@pytest.mark.parametrize("texts", read_sentences(), ids=lambda texts: texts["language"])
def test_each_sentence_question_has_an_answer(texts: Json) -> None:
    memories = texts["memories"]
    answers = [question["answer"] for question in texts["questions"]]

    assert len(set(memories)) == 30
    assert len(set(answers)) == len(answers) == 15
    assert set(answers) <= set(range(30))

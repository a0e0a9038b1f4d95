"""Benchmark conversations in `bench/data`: answerable, unique questions; figures computed from them."""

import json
import re
from datetime import datetime
from typing import Any

import pytest

from bench.dialogues import OWN, QuestionResult, read_set
from bench.evidence import interval, rows, variants
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


@pytest.mark.parametrize("texts", read_sentences(), ids=lambda texts: texts["language"])
def test_each_sentence_question_has_an_answer(texts: Json) -> None:
    memories = texts["memories"]
    answers = [question["answer"] for question in texts["questions"]]

    assert len(set(memories)) == 30
    assert len(set(answers)) == len(answers) == 15
    assert set(answers) <= set(range(30))

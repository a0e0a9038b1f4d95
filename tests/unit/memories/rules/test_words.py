"""Words of a text in any language, and the containment of words and names."""

import re
import unicodedata
from collections.abc import Callable

import pytest
import qdrant_edge as edge

from agentmemory_operator.memories.rules.any_language import any_language_text
from agentmemory_operator.memories.rules.words import MAX_OCCURRENCES, compose, engine_text, prepare_search, split_words


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Big Ant here", "here BIG"),
        ("Big Ant here", "ant"),
        ("snake_case and kebab-case", "case snake"),
        ("Straße 5", "STRASSE"),
        ("cafe\u0301 au lait", "CAF\u00c9"),
        ("İstanbul", "İSTANBUL"),
        ("\uff21\uff22\uff23\uff11\uff12", "abc12"),
        ("हिन्दी सीखो", "हिन्दी"),
        ("我喜欢喝咖啡", "咖啡"),
        ("iPhone手机坏了", "iphone 手机"),
        ("私はコーヒーが好きです", "コーヒー"),
        ("\uff83\uff9e\uff70\uff80\uff8d\uff9e\uff70\uff7d", "データベース"),
        ("커피를 마셔요", "커피"),
        ("ฉันชอบกาแฟมาก", "กาแฟ"),
        ("2024年3月", "3月"),
        ("Привет, Мир", "МИР"),
    ],
)
def test_words_match_in_any_order_case_and_script(text: str, wanted: str) -> None:
    assert split_words(text).contain(split_words(wanted))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("elephant", "ant"),
        ("Big Ant", "big here"),
        ("cafe", "café"),
        ("हिन्दी", "हिन"),
        ("我喜欢喝咖啡", "咖喱"),
        ("我喜欢喝咖啡", "啡咖"),
        ("iPhones手机", "iphone"),
        ("123", "12"),
        ("don't", "do"),
        ("", "a"),
    ],
)
def test_part_of_a_word_does_not_match(text: str, wanted: str) -> None:
    assert not split_words(text).contain(split_words(wanted))


@pytest.mark.parametrize("text", ["", " ", "!?", "🙂", "_-_", "\u200b"])
def test_punctuation_and_symbols_are_no_words(text: str) -> None:
    assert not split_words(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ada drinks café au lait, don't ﬁx", "Ada drinks café au lait, don't ﬁx"),
        ("喝茶", "喝 茶 喝茶"),
        ("买iPhone了", "买 iPhone 了"),
        ("커피를 마셔요", "커 피 를 커피 피를 마 셔 요 마셔 셔요"),
        ("กิ่ง", "กิ ง กิง"),
        ("茶", "茶"),
    ],
)
def test_spaceless_scripts_become_character_pairs(text: str, expected: str) -> None:
    assert engine_text(text).split() == expected.split()


def test_engine_reads_each_part_as_one_word() -> None:
    model = edge.Bm25(edge.Bm25Config(stopwords=edge.StopwordsSet(set(), set()), stemmer=edge.DisabledStemmer()))
    characters = [
        chr(code)
        for code in range(0x0E00, 0x30000)
        if unicodedata.category(chr(code))[0] in "LM" and unicodedata.normalize("NFKC", chr(code)) == chr(code)
    ]
    spaceless = [character for character in characters if split_words(character).runs]
    parts = [part for character in spaceless for part in engine_text(f"中{character}").split()]

    split = [part for part in set(parts) if len(model.embed_query(part).indices) != 1]

    assert len(spaceless) > 80_000
    assert split == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Blue  Heron\nLabs is small", "blue heron labs"),
        ("It was Anna's idea", "Anna"),
        ("an annal of Ann, by Anna", "anna"),
        ("C++ and Rust", "c++"),
        ("zo\u00eb", "zoe\u0308"),
        ("\uff21\uff22 Co.", "AB Co"),
        ("田中太郎は東京に", "東京"),
        ("iPhone手机", "iphone"),
        ("राम दिल्ली में", "राम"),
    ],
)
def test_name_matches_whole_words(text: str, name: str) -> None:
    assert prepare_search(text).has(name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Anna also pays", "al"),
        ("Heron Blue Labs", "blue heron labs"),
        ("Blue Heron, Labs", "blue heron labs"),
        ("e\u0301tat", "e"),
        ("रामा", "राम"),
        ("text", ""),
        ("text", " "),
        ("a + b", "+"),
        ("bananas an", "an b"),
    ],
)
def test_name_does_not_match_part_of_a_word(text: str, name: str) -> None:
    assert not prepare_search(text).has(name)


def test_name_search_is_limited() -> None:
    assert prepare_search("ab" * (MAX_OCCURRENCES - 1) + " a").has("a")
    assert not prepare_search("aab" * MAX_OCCURRENCES + " a").has("a")


@pytest.mark.parametrize(
    "marks", ["\u0301\u0323", "\u0301\uff9e", "\u0301\u0f73", "\u0301\u200d\u0323", "\u3099\u0301"]
)
@pytest.mark.parametrize("split", [split_words, prepare_search, engine_text, any_language_text])
def test_long_runs_of_marks_are_cut(
    monkeypatch: pytest.MonkeyPatch, split: Callable[[str], object], marks: str
) -> None:
    """Normalisation sorts the marks of a run in quadratic time: 6 s for 65,000."""
    normalize, lengths = unicodedata.normalize, []

    def record(form: str, text: str) -> str:
        runs = re.split(
            "[^\0]+", "".join("\0" if unicodedata.combining(mark) else "x" for mark in normalize("NFKD", text))
        )
        lengths.append(max(map(len, runs)))
        return normalize(form, text)  # type: ignore[arg-type]

    monkeypatch.setattr(unicodedata, "normalize", record)
    split("か" + marks * 500)

    assert 0 < max(lengths) <= 60


@pytest.mark.parametrize("marks", [0, 1, 29, 30, 31, 59, 60, 61, 1000])
def test_thirty_marks_of_a_run_are_kept(marks: int) -> None:
    for letters in range(1, 32):
        text = "b" * letters + "\u0323" * marks + "c"

        assert compose(text) == unicodedata.normalize("NFKC", "b" * letters + "\u0323" * min(marks, 30) + "c")

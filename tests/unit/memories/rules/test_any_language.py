"""Words of texts in any language: exact names and numbers, inflected words, stop words of questions."""

import unicodedata
from typing import get_args
from unittest.mock import Mock

import pytest
import qdrant_edge as edge

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.memories.rules import any_language
from agentmemory_operator.memories.rules.any_language import _word_parts, any_language_text, language_of
from agentmemory_operator.memories.rules.keywords import date_text, keyword_document, question_document
from agentmemory_operator.memories.rules.stop_words import STOP_WORDS
from agentmemory_operator.spec.kinds.spec_index import KeywordLanguage

AUTO = KeywordSource(language="auto", window=0)
ENGINE = edge.Bm25(edge.Bm25Config(stopwords=edge.StopwordsSet(set(), set()), stemmer=edge.DisabledStemmer()))


def indices_of(text: str, *, is_question: bool = False) -> set[int]:
    """Return the engine's words of a text."""
    return set(ENGINE.embed_query(any_language_text(text, is_question=is_question)).indices)


def common_words(memory: str, question: str) -> int:
    """Return the number of the engine's words that a memory and a question have in common."""
    return len(indices_of(memory) & indices_of(question, is_question=True))


@pytest.mark.parametrize(
    ("memory", "question"),
    [
        ("Straße", "STRASSE"),
        ("İstanbul", "istanbul"),
        ("cafe\u0301", "café"),
        ("\uff11\uff11\uff13\uff18", "1138"),
        ("١١٣٨", "1138"),
        ("۱۱۳۸", "1138"),
        ("११३८", "1138"),
        ("\uff21\uff22\uff23", "abc"),
        ("می\u200cخواهم", "میخواهم"),
        ("क्\u200dष", "क्ष"),
        ("\u202bשלום\u202c", "שלום"),
        ("مُحَمَّد", "محمد"),
        ("محـــمد", "محمد"),
        ("ΟΔΥΣΣΕΥΣ", "οδυσσευς"),
        ("co\u00adoperate", "cooperate"),
    ],
)
def test_writing_variants_are_the_same_words(memory: str, question: str) -> None:
    assert indices_of(memory) == indices_of(question, is_question=True) != set()


@pytest.mark.parametrize(
    ("exact", "similar", "question"),
    [
        ("Andre called", "Andres called", "andre"),
        ("Andres called", "Andre called", "Andres"),
        ("André called", "Andre called", "André"),
        ("order A-1138", "order A-1183", "A-1138"),
        ("room 214", "room 241", "214"),
        ("version 1.18.3", "version 1.18.4", "1.18.3"),
        ("हिन्दी", "हिन्दू", "हिन्दी"),
        ("Иван", "Ивана", "Иван"),
        ("محمد", "محمود", "محمد"),
        ("מיכל", "מיכאל", "מיכל"),
    ],
)
def test_exact_word_precedes_similar_words(exact: str, similar: str, question: str) -> None:
    assert common_words(exact, question) > common_words(similar, question)


@pytest.mark.parametrize(
    ("memory", "question"),
    [
        ("cats", "cat"),
        ("houses", "house"),
        ("Verträge", "Vertrag"),
        ("húngaros", "hungaro"),
        ("récoltent", "récolte"),
        ("книгу", "книги"),
        ("дома", "дом"),
        ("βιβλία", "βιβλίο"),
        ("السيارة", "سيارات"),
        ("הספר", "ספרים"),
        ("किताबें", "किताब"),
        ("புத்தகங்கள்", "புத்தகம்"),
        ("könyvet", "könyvek"),
        ("kitabı", "kitap"),
    ],
)
def test_inflected_word_is_found(memory: str, question: str) -> None:
    assert common_words(memory, question)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("Who is grading the essays?", "grading ǂgrad essays ǂessa"),
        ("Wer ist das?", "wer ist das"),
        ("When did the war end?", "war end ǂend"),
        ("wo war der Igel", "igel ǂigel"),
        ("ποιος είναι ο Γιάννης;", "γιάννησ ǂγιαν"),
        ("किताब क्या है?", "किताब ǂकिता"),
        ("Who is Will?", "will"),
        ("to be or not to be", "to be or not to be"),
        ("vitamin D", "vitamin ǂvita d"),
        ("vitamin C dosage", "vitamin ǂvita c dosage ǂdosa"),
        ("size M", "size ǂsize m"),
        ("Who has hepatitis A?", "hepatitis ǂhepa a"),
        ("IT budget", "it budget ǂbudg"),
        ("the US visa", "us visa ǂvisa"),
        ("IT 2024", "it 2024"),
        ("What should I buy? A cat or a dog?", "buy ǂbuy cat ǂcat dog ǂdog"),
        ("A I", "a i"),
        ("WHEN DID THE WAR END", "war end ǂend"),
        ("die 3 Katzen 🐈", "3 katzen ǂkatz"),
        ("买iPhone了", "买 iphone ǂipho 了"),
        ("violin lessons", "violin ǂviol lessons ǂless"),
        ("", ""),
        (" \u200f!? ", ""),
    ],
)
def test_question_leaves_out_stop_words_of_its_language(question: str, words: str) -> None:
    assert any_language_text(question, is_question=True) == words


def test_memory_keeps_all_words() -> None:
    assert any_language_text("Who is Will, ο Γιάννης 茶?") == "who is will ο γιάννησ ǂγιαν 茶"


@pytest.mark.parametrize("language", sorted(STOP_WORDS))
def test_stop_words_of_a_question_are_words_of_memories(language: str) -> None:
    """A stop word is one word, so that a question of stop words alone finds the memories that contain them."""
    for word in STOP_WORDS[language]:
        assert any_language_text(word) == any_language_text(word, is_question=True)
        assert len(indices_of(word)) == 1


def test_engine_reads_each_part_as_one_word() -> None:
    """Covers letters and digits of all scripts, and the marks from Latin to Gujarati."""
    letters = [chr(code) for code in range(0x20000) if unicodedata.category(chr(code))[0] in "LN"]
    marks = [chr(code) for code in range(0x0AF0) if unicodedata.category(chr(code)) in ("Mn", "Mc")]
    parts = {part for character in (*letters, *marks) for part in any_language_text(f"ka{character}ka").split()}

    assert len(parts) > 80_000
    assert {part for part in parts if len(ENGINE.embed_query(part).indices) != 1} == set()


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Who is grading the essays?", "auto", "english"),
        ("Wer hat den Aufsatz korrigiert?", "auto", "none"),
        ("violin", "auto", "none"),
        ("Wer hat den Aufsatz korrigiert?", "english", "english"),
        ("Who is grading the essays?", "german", "german"),
    ],
)
def test_english_is_recognised(text: str, language: str, expected: str) -> None:
    assert language_of(text, language) == expected


def test_auto_document_needs_no_language() -> None:
    memory = keyword_document("the cats", AUTO)
    question = question_document("the cats", AUTO)

    assert (memory["text"], question["text"]) == ("the cats ǂcat", "cats ǂcat")
    assert memory["options"] == question["options"] == {"language": "none", "avg_len": 160.0, "k": 1.2}


@pytest.mark.parametrize("language", [language for language in get_args(KeywordLanguage) if language != "auto"])
def test_other_languages_do_not_change(language: str) -> None:
    """The stored vectors of other languages were computed from these documents."""
    document = {
        "text": "the cats",
        "model": "qdrant/bm25",
        "options": {"language": language, "avg_len": 80.0, "k": 1.2},
    }

    assert keyword_document("the cats", KeywordSource(language=language, window=0)) == document
    assert question_document("the cats", KeywordSource(language=language, window=0)) == document


def test_date_is_found_in_both_forms() -> None:
    assert [date_text(1683504000000, language) for language in ("english", "german", "auto")] == [
        "8 May 2023",
        "2023-05-08",
        "8 May 2023 2023-05-08",
    ]


@pytest.mark.parametrize("text", ["snake_case and kebab-case", "It's A-1138, v1.18.3!", "a\nb\n\na\tb", ""])
def test_ascii_text_is_split_like_any_other(text: str) -> None:
    assert [*any_language_text(text).split(), "茶"] == any_language_text(f"{text} 茶").split()


@pytest.mark.parametrize("word", ["x" * 41, "茶" * 41])
def test_long_words_and_runs_are_not_cached(word: str) -> None:
    before = _word_parts.cache_info().currsize
    any_language_text(word)

    assert _word_parts.cache_info().currsize == before


def test_endings_are_searched_in_short_words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes quadratic time in a run of vowels: 9.5 s for 16,000 letters."""
    ending = Mock(wraps=any_language._ENDING)
    monkeypatch.setattr(any_language, "_ENDING", ending)
    _word_parts.cache_clear()

    assert any_language_text("Γάτες " + "α" * 16_000 + "b").endswith("b ǂαααα")
    assert [call.args[1] for call in ending.sub.call_args_list] == ["γατεσ"]


def test_repeated_word_is_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Mock(wraps=any_language._parts)
    monkeypatch.setattr(any_language, "_parts", parts)

    assert any_language_text("Straße 茶 " * 100) == " ".join(["strasse ǂstra 茶"] * 100)
    assert parts.call_count == 2


def test_long_text_is_read_whole() -> None:
    text = "Straße नमस्ते 茶 " * 50_000

    parts = any_language_text(text).split()

    assert len(text) > 600_000
    assert (parts[0], parts[-1], len(parts)) == ("strasse", "茶", 5 * 50_000)

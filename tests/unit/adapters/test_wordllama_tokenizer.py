"""Offline tokenizer of contexts: the properties that the count of a context relies on."""

import re

import pytest

from agentmemory_operator.adapters.embedding.wordllama_embedder import load_tokenizer
from agentmemory_operator.adapters.embedding.wordllama_tokenizer import WORDLLAMA_MEASURE, count_tokens
from agentmemory_operator.search.rules.context_budget import MAX_CHARS_PER_TOKEN

TOKENS = load_tokenizer().get_vocab()


def test_no_token_has_a_line_break_and_another_character() -> None:
    assert {token for token in TOKENS if "\n" in token} == set()
    assert "<0x0A>" in TOKENS


def test_each_digit_is_a_token() -> None:
    assert {token for token in TOKENS if re.search(r"\d", token) and len(token) > 1 and "<0x" not in token} <= {
        "\u2581"
    }


def test_no_token_is_longer_than_its_bound() -> None:
    assert max(len(token) for token in TOKENS if not token.startswith("<0x")) <= MAX_CHARS_PER_TOKEN


@pytest.mark.parametrize(
    "text", ["Pays by invoice", "Z\u00e4hler \U0001f989\U0001f989", "\u0e17\u0e14", "", "  two  spaces"]
)
def test_lines_add_up(text: str) -> None:
    assert count_tokens(f"first\n{text}\nlast") == count_tokens("first") + sum(
        map(WORDLLAMA_MEASURE.count_line, (text, "last"))
    )


def test_cut_divides_no_character() -> None:
    text = "one \U0001f989\U0001f989 two"

    beginnings = [WORDLLAMA_MEASURE.cut(text, tokens) for tokens in range(20)]

    assert beginnings[0] == ""
    assert beginnings[-1] == text
    assert all(text.startswith(beginning) for beginning in beginnings)
    assert all(count_tokens(beginning) <= tokens for tokens, beginning in enumerate(beginnings) if tokens)

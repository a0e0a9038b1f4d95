"""Offline tokenizer: the vocabulary of Llama 2 in the `wordllama` wheel, 32,000 tokens. Needs no key and no network.

Newer tokenizers of language models mostly count fewer tokens for the same text.
"""

from agentmemory_operator.adapters.embedding.wordllama_embedder import MODEL, load_tokenizer
from agentmemory_operator.search.rules.context_budget import TextMeasure


def count_tokens(text: str) -> int:
    """Return the number of tokens of a text, without those that mark its beginning or end."""
    return len(load_tokenizer().encode(text, add_special_tokens=False))


def _count_line(text: str) -> int:
    # No token has a line break and another character. The first token of a text is a space that lines do not have.
    return count_tokens(f"\n{text}") - 1


def _cut(text: str, tokens: int) -> str:
    offsets = load_tokenizer().encode(text, add_special_tokens=False).offsets
    return text if len(offsets) <= tokens else text[: offsets[tokens][0]]


WORDLLAMA_MEASURE = TextMeasure(name=f"wordllama/{MODEL}", count=count_tokens, count_line=_count_line, cut=_cut)

"""Offline tokenizer: the vocabulary of Llama 2 in the `wordllama` wheel, 32,000 tokens. Needs no key and no network.

Newer tokenizers of language models mostly count fewer tokens for the same text.

No token continues over a line break or a single space. So a text is counted word by word, and the counts of words are
cached: counting a whole line took ten times as long as the rest of a context.
"""

from functools import lru_cache

from agentmemory_operator.adapters.embedding.wordllama_embedder import MODEL, load_tokenizer
from agentmemory_operator.search.rules.context_budget import TextMeasure

# Sign that the tokenizer writes for a space.
_SPACE = "\u2581"
MAX_CACHED_WORDS, MAX_CACHED_CHARS = 1 << 16, 32


def count_tokens(text: str) -> int:
    """Return the number of tokens of a text, without those that mark its beginning or end."""
    return len(load_tokenizer().encode(text, add_special_tokens=False))


def _count_line(text: str) -> int:
    if "  " in text or _SPACE in text:
        return count_tokens(f"\n{text}") - 1
    first, *words = text.split(" ")
    # The tokenizer adds a space to the beginning of a text, which a line does not have and a further word has.
    begun = count_tokens(f"\n{first}") - 1
    return begun + sum(_count_short(word) if len(word) <= MAX_CACHED_CHARS else count_tokens(word) for word in words)


@lru_cache(MAX_CACHED_WORDS)
def _count_short(word: str) -> int:
    # An empty word is a space at the end.
    return count_tokens(word) if word else 1


def _cut(text: str, tokens: int) -> str:
    offsets = load_tokenizer().encode(text, add_special_tokens=False).offsets
    return text if len(offsets) <= tokens else text[: offsets[tokens][0]]


WORDLLAMA_MEASURE = TextMeasure(name=f"wordllama/{MODEL}", count=count_tokens, count_line=_count_line, cut=_cut)

"""Search by words: what a memory's keyword text is, and what its BM25 score is worth.

Source of the numbers: `docs/adr/0009`.
"""

DEFAULT_LANGUAGE = "english"

WINDOW = 2
"""Memories of the session before a memory whose text belongs to its keyword text."""

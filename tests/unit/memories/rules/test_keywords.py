"""Keyword vectors on points."""

from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.memories.rules.keywords import KeywordText

SOURCE = KeywordSource(language="english", window=2)


@pytest.mark.parametrize(("vector", "names"), [([1.0, 0.0], {"", KEYWORD_VECTOR}), ({}, {KEYWORD_VECTOR})])
def test_missing_vector_is_not_added(vector: Any, names: set[str]) -> None:
    point = {"id": "1", "vector": vector, "payload": {"content": "pear tart"}}

    assert set(KeywordText("pear tart").add_to_point(point, SOURCE)["vector"]) == names

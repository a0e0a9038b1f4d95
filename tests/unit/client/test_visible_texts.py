"""The clients and the API agree on which texts are blank."""

import re
import sys
from pathlib import Path

from agentmemory_client.texts import is_visible
from agentmemory_operator.spec.canonical_names import INVISIBLE, is_blank

ROOT = Path(__file__).parents[3]


def test_python_client_knows_every_invisible_character() -> None:
    characters = map(chr, range(sys.maxunicode + 1))

    assert [hex(ord(character)) for character in characters if is_visible(character) == is_blank(character)] == []


def test_typescript_client_has_the_same_ranges() -> None:
    source = (ROOT / "client-ts" / "src" / "langgraph-values.ts").read_text()
    escapes = "".join(re.findall(r"\\u\{\w+\}|\\u\w{4}|-(?=\\u)", source.partition("VISIBLE =")[2].partition(";")[0]))

    assert re.sub(r"\\u\{?(\w+)\}?", lambda match: chr(int(match[1], 16)), escapes) == INVISIBLE

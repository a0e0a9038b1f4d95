"""Canaries: unique values that are planted in a run, and a search for the places that leak them.

The search uses the first and the last 12 characters of each encoding of a canary, so it also finds truncated values.
For a vector it searches for each of its numbers.
"""

import base64
import json
import random
import re
import struct
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

FRAGMENT_CHARS = 12
# Signed tokens of any issuer: header and claims of a JSON Web Token.
TOKEN = re.compile(r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}")
A_TOKEN = "a JSON Web Token"
CONTEXT_CHARS = 60
_RANDOM = random.SystemRandom()


def word(syllables: int = 6) -> str:
    """Return pronounceable letters without meaning. No rule for secrets matches them."""
    return "".join(_RANDOM.choice("bdfgklmnprstvz") + _RANDOM.choice("aeiou") for _ in range(syllables))


class Leak(NamedTuple):
    """A canary in a place where it must not be."""

    canary: str
    place: str
    beside: str

    def __str__(self) -> str:
        return f"{self.canary} in {self.place}: …{self.beside}…"


@dataclass(slots=True)
class Canaries:
    """Planted values by name.

    Attributes:
        forms: For each name, all fragments that reveal its value.
    """

    forms: dict[str, frozenset[str]] = field(default_factory=dict)
    # Names by fragment, for each length of fragments: one pass over a text finds all fragments of a length.
    _names: dict[int, dict[str, set[str]]] = field(default_factory=dict)

    def secret(self, name: str) -> str:
        """Plant a key: one word."""
        return self.plant(name, f"{word()}-{name.replace(' ', '-')}-{word()}")

    def text(self, name: str) -> str:
        """Plant a text with characters that JSON and URLs escape."""
        return self.plant(name, f'{word(4)} "{word(2)}"/é {name} {word(2)}\\&{word(4)}')

    def identifier(self, name: str) -> str:
        """Plant a name without special characters."""
        return self.plant(name, f"{word()}.{word()}")

    def plant(self, name: str, value: str) -> str:
        """Plant a value. A search does not distinguish several canaries with the same name."""
        assert len(value) >= FRAGMENT_CHARS, f"{name}: too short to tell it from anything else"
        self._add(name, self.forms.get(name, frozenset()) | frozenset(fragments_of(value)))
        return value

    def vector(self, name: str, size: int) -> list[float]:
        """Plant a random vector of length 1: Qdrant normalises vectors for Cosine, and would store another one."""
        drawn = [_RANDOM.uniform(0.2, 1.0) for _ in range(size)]
        length = sum(number * number for number in drawn) ** 0.5
        return self.plant_vector(name, [number / length for number in drawn])

    def plant_vector(self, name: str, vector: Sequence[float]) -> list[float]:
        """Plant the numbers of a vector, in double and single precision, and its single-precision bytes in base64."""
        packed = struct.pack(f"<{len(vector)}f", *vector)
        short = struct.unpack(f"<{len(vector)}f", packed)
        numbers = {repr(number)[: FRAGMENT_CHARS - 2] for number in (*vector, *short)}
        self._add(name, frozenset(numbers | {form for shift in range(3) for form in _pieces(_base64(packed, shift))}))
        return list(vector)

    def _add(self, name: str, forms: frozenset[str]) -> None:
        self.forms[name] = forms
        for form in forms:
            self._names.setdefault(len(form), {}).setdefault(form, set()).add(name)

    def find_leaks(self, text: str, place: str, *, besides: Iterable[str] = ()) -> list[Leak]:
        """Return the canaries that a text leaks, and the first JSON Web Token in it.

        Args:
            place: Description of the text for the report.
            besides: Names of canaries that the text may contain.
        """
        allowed = frozenset(besides)
        found = self._first_places(text)
        leaks = [
            Leak(name, place, _around(text, found[name]))
            for name in self.forms
            if name not in allowed and name in found
        ]
        token = TOKEN.search(text)
        if token and A_TOKEN not in allowed:
            leaks.append(Leak(A_TOKEN, place, _around(text, token.start())))
        return leaks

    def _first_places(self, text: str) -> dict[str, int]:
        """Return the names of the canaries in a text, with the position of a fragment."""
        found: dict[str, int] = {}
        for size, names in self._names.items():
            for at in range(len(text) - size + 1):
                for name in names.get(text[at : at + size], ()):
                    found.setdefault(name, at)
        return found

    def names_in(self, *texts: str) -> frozenset[str]:
        """Return the names of the canaries in the texts. The response to a request may contain the request's own."""
        return frozenset(leak.canary for text in texts for leak in self.find_leaks(text, ""))

    def search(self, evidence: Mapping[str, str]) -> list[Leak]:
        """Return the canaries that any of the texts leaks.

        Args:
            evidence: Texts by place.
        """
        return [leak for place, text in evidence.items() for leak in self.find_leaks(text, place)]


def fragments_of(value: str) -> set[str]:
    """Return all fragments that reveal a value: its start and its end, in each encoding."""
    said = json.dumps(value)[1:-1]
    ways = (
        value,
        said,
        json.dumps(value, ensure_ascii=False)[1:-1],
        json.dumps(said)[1:-1],
        urllib.parse.quote(value, safe=""),
        urllib.parse.quote_plus(value),
        repr(value)[1:-1],
        value.encode().hex(),
    )
    encoded = (_base64(value.encode(), shift) for shift in range(3))
    both = (way for text in encoded for way in (text, text.replace("+", "-").replace("/", "_")))
    return {piece for way in (*ways, *both) for piece in _pieces(way)}


def _base64(data: bytes, shift: int) -> str:
    """Return the part of the encoding that is the same for any `shift` bytes before the value."""
    start, end = -(-shift * 8 // 6), (shift + len(data)) * 8 // 6
    return base64.b64encode(b"\0" * shift + data).decode()[start:end]


def _pieces(text: str) -> set[str]:
    return {text[:FRAGMENT_CHARS], text[-FRAGMENT_CHARS:]}


def _around(text: str, at: int) -> str:
    return text[max(at - CONTEXT_CHARS, 0) : at + CONTEXT_CHARS].replace("\n", " ")

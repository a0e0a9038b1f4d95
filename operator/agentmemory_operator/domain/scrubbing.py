"""Take secrets out of text: what a rule finds becomes a fixed marker, so that equal texts stay equal.

Scrubbing again changes nothing: it is repeated until no rule finds more, and a marker alone is never found. Each rule
reads a text once from left to right; see `secret_rules`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["api-key", "bearer-token", "cloud-key", "connection-string", "jwt", "password", "private-key", "token"]
# What has to be true of a find: nothing, that it is no word or placeholder, or that it looks drawn by lot.
Check = Literal["any", "value", "random"]

MARKER = re.compile(r"\[REDACTED:[a-z-]+\]")
WORD_REST = re.compile(r"[\w-]*")
MAX_DEPTH = 64

PLACEHOLDER = re.compile(
    r"[*.\u2022xX_-]+|\$\{?\w+\}?|\$\(.*|\{\{?.*|<.*|%\w+%|process\.env\b.*|os\.environ\b.*|env[.(\[].*|getenv\(.*"
)
# What follows `password:` in sentences, lists and code.
_WORDS = """
a again an and any are ask asked at be been blank bool both by can cannot change changed check correct default
disabled do does eight empty enabled expired expires expiry false field fine for forgot forgotten four from has
hash hashed have he her hidden his how i if in incorrect input invalid is it its leave length let lost make masked
min minimum mismatch missing must my n/a need needed needs new nil no none not null of off ok old on one only or
our outdated please policy prompt protected recovery redacted removed required reset resets rotated rotation rules
same saved secret see set she should six stolen stored str string strong sent temporary ten text that the their
there they this to too true twelve type undefined unknown unset update updated use used user valid varchar was we
weak were when which who will with wrong yes you your
"""
WORDS = frozenset(_WORDS.split())
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"[^\W\d_]")
_PLAIN = re.compile(r"\d{1,4}-[a-z]+|[a-z]+-\d{1,4}|v?\d+(?:\.\d+)+|\d{4}-\d\d-\d\d\S*|(?:[a-z]+://|www\.)\S*", re.I)
_MARK = re.compile(r"[^\w\s.,:;?)\]\"'-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One form of a secret.

    Attributes:
        is_whole: all that matches is taken out; else the last group that took part, where the pattern has groups.
        hints: the rule is skipped where none of them stands in the text; in lower case, without case. Empty: never.
        is_token: it has to begin where a word does, and the rest of that word goes with it.
    """

    kind: Kind
    pattern: re.Pattern[str]
    is_whole: bool = False
    hints: tuple[str, ...] = ()
    check: Check = "any"
    is_token: bool = False


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """A text without its secrets, and of which kinds those were."""

    text: str
    kinds: frozenset[Kind] = frozenset()


@dataclass(frozen=True, slots=True)
class ScrubbedObject:
    """A JSON object without the secrets of its strings, and of which kinds those were."""

    value: Mapping[str, Any]
    kinds: frozenset[Kind] = frozenset()


def marker(kind: Kind) -> str:
    """Return what stands in a secret's place."""
    return f"[REDACTED:{kind}]"


def scrub(text: str, rules: Sequence[Rule]) -> Scrubbed:
    """Return the text without its secrets."""
    kinds: set[Kind] = set()
    while finds := _found(text, rules):
        kinds.update(kind for _, _, kind in finds)
        text = _replaced(text, finds)
    return Scrubbed(text, frozenset(kinds))


def scrub_object(value: Mapping[str, Any], rules: Sequence[Rule]) -> ScrubbedObject:
    """Return the object with every string in it scrubbed, as what follows its key: `{"password": "x"}` holds one."""
    kinds: set[Kind] = set()
    return ScrubbedObject(_scrubbed(value, "", rules, kinds), frozenset(kinds))


def _scrubbed(value: Any, key: str, rules: Sequence[Rule], kinds: set[Kind]) -> Any:
    if isinstance(value, str):
        return _scrubbed_under(value, key, rules, kinds)
    if isinstance(value, Mapping):
        return {name: _scrubbed(inner, name, rules, kinds) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(inner, key, rules, kinds) for inner in value]
    return value


def _scrubbed_under(value: str, key: str, rules: Sequence[Rule], kinds: set[Kind]) -> str:
    """Scrub a string that stands under a key: first as the value of that name, then by itself."""
    is_one_line = key and value and "\n" not in value and '"' not in value
    if is_one_line:
        head = f'{key}="'
        named = scrub(f'{head}{value}"', rules)
        if named.text.startswith(head) and named.text.endswith('"'):
            kinds.update(named.kinds)
            value = named.text[len(head) : -1]
    scrubbed = scrub(value, rules)
    kinds.update(scrubbed.kinds)
    return scrubbed.text


Find = tuple[int, int, Kind]


def _found(text: str, rules: Sequence[Rule]) -> list[Find]:
    """Return what the rules find, by place; where finds overlap, they are one."""
    lowered = text.lower()
    finds = [
        find
        for rule in rules
        if not rule.hints or any(hint in lowered for hint in rule.hints)
        for find in _finds_of(rule, text)
    ]
    return _joined(sorted(finds, key=lambda find: (find[0], -find[1])))


def _finds_of(rule: Rule, text: str) -> Iterator[Find]:
    covered = 0
    for match in rule.pattern.finditer(text):
        start, end = match.span(0 if rule.is_whole else match.lastindex or 0)
        if start < covered or (rule.is_token and start and text[start - 1].isalnum()):
            continue
        if rule.is_token:
            end = _end_of_word(text, end)
        covered = end
        if _is_secret(text[start:end], rule.check):
            yield start, end, rule.kind


def _end_of_word(text: str, place: int) -> int:
    rest = WORD_REST.match(text, place)
    return rest.end() if rest else place


def _joined(finds: Sequence[Find]) -> list[Find]:
    joined: list[Find] = []
    for start, end, kind in finds:
        if joined and start < joined[-1][1]:
            first, last, outer = joined[-1]
            joined[-1] = first, max(last, end), outer
        else:
            joined.append((start, end, kind))
    return joined


def _replaced(text: str, finds: Sequence[Find]) -> str:
    parts, place = [], 0
    for start, end, kind in finds:
        parts += [text[place:start], marker(kind)]
        place = end
    return "".join([*parts, text[place:]])


def _is_secret(found: str, check: Check) -> bool:
    if not MARKER.sub("", found).strip():
        return False
    if check == "any":
        return True
    is_value = not PLACEHOLDER.fullmatch(found) and found.rstrip(".,:;!?").lower() not in WORDS
    return is_value and (check == "value" or _is_random(found))


def _is_random(found: str) -> bool:
    """Tell whether a word looks like no word: letters with digits, or with marks inside."""
    bare = found.rstrip(".,:;!?")
    if not _LETTER.search(bare) or _PLAIN.fullmatch(bare):
        return False
    return bool(_DIGIT.search(bare) or _MARK.search(bare))

"""Replace secrets in text by a fixed marker, so equal texts stay equal.

Scrubbing is idempotent: it repeats until no rule finds more, and a marker itself never matches. In each pass, a rule
reads a text once from left to right; see `secret_patterns`.

`re` blocks the thread until a match ends. So a long text is read in windows. `scrub` and `scrub_object` are generators:
they yield after each rule of a long window, and after each string of an object. Their caller can run other work in
between.
"""

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Kind = Literal["api-key", "bearer-token", "cloud-key", "connection-string", "jwt", "password", "private-key", "token"]
# Condition on a match. any: none. value: it is not a word or placeholder. random: as value, and it looks random.
Check = Literal["any", "value", "random"]

MARKER = re.compile(r"\[REDACTED:[a-z-]+\]")
WORD_REST = re.compile(r"[\w-]*")

# Maximum number of characters in a window.
WINDOW = 64 << 10
# Minimum overlap of two windows in characters. If the end of a window cuts a longer match, the next window starts with
# that match.
OVERLAP = 16 << 10
# Maximum number of passes. `password:password:...` needs about twenty, and gets shorter with each.
_MAX_PASSES = 64
# Maximum characters at the end of a key, and at the start of a long value, that are matched together.
_MAX_KEY_CHARS, _MAX_VALUE_CHARS = 128, 4096

PLACEHOLDER = re.compile(
    r"[*.\u2022xX_-]+|\$\{?\w+\}?|\$\(.*|\{\{?.*|<.*|%\w+%|process\.env\b.*|os\.environ\b.*|env[.(\[].*|getenv\(.*"
)
# Words that follow `password:` in sentences, lists and code.
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


Value = TypeVar("Value")
Steps = Generator[None, None, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRule:
    """Pattern of one kind of secret.

    Attributes:
        is_whole: True if the whole match is the secret. Otherwise it is the last group that matched, if the pattern has
            groups.
        hints: Lower-case substrings; the rule is skipped for texts with none of them. Empty: never skipped.
        is_token: True if the match must start at the start of a word, and is extended to the end of its word.
    """

    kind: Kind
    pattern: re.Pattern[str]
    is_whole: bool = False
    hints: tuple[str, ...] = ()
    check: Check = "any"
    is_token: bool = False


@dataclass(frozen=True, slots=True)
class ScrubbedText:
    """A text without its secrets, and the kinds of secrets that were removed."""

    text: str
    kinds: frozenset[Kind] = frozenset()


@dataclass(frozen=True, slots=True)
class ScrubbedObject:
    """A JSON object without the secrets in its strings, and the kinds of secrets that were removed."""

    value: Mapping[str, Any]
    kinds: frozenset[Kind] = frozenset()


def marker(kind: Kind) -> str:
    """Return the text that replaces a secret."""
    return f"[REDACTED:{kind}]"


def scrub(text: str, rules: Sequence[SecretRule]) -> Steps[ScrubbedText]:
    """Replace the secrets in a text, in at most 64 passes; return the text and the kinds of secrets found."""
    kinds: set[Kind] = set()
    for _ in range(_MAX_PASSES):
        finds = yield from _found(text, rules)
        if not finds:
            break
        kinds.update(kind for _, _, kind in finds)
        text = _replaced(text, finds)
    return ScrubbedText(text, frozenset(kinds))


def scrub_object(value: Mapping[str, Any], rules: Sequence[SecretRule]) -> Steps[ScrubbedObject]:
    """Scrub every string of an object, also in combination with its key: `{"password": "x"}` contains a secret."""
    kinds: set[Kind] = set()
    scrubbed = yield from _scrubbed(value, _Name("", ()), rules, kinds)
    return ScrubbedObject(scrubbed, frozenset(kinds))


@dataclass(frozen=True, slots=True)
class _Name:
    """A key, and the rules that may match it together with its value."""

    text: str
    rules: Sequence[SecretRule]


def _name_of(key: str, rules: Sequence[SecretRule]) -> _Name:
    text = key[-_MAX_KEY_CHARS:]
    lowered = text.lower()
    return _Name(text, [rule for rule in rules if rule.hints and _has_hint(rule, lowered)])


def _scrubbed(value: Any, name: _Name, rules: Sequence[SecretRule], kinds: set[Kind]) -> Steps[Any]:
    if isinstance(value, str):
        return (yield from _scrubbed_under(value, name, rules, kinds))
    if isinstance(value, Mapping):
        scrubbed = {}
        for key, inner in value.items():
            scrubbed[key] = yield from _scrubbed(inner, _name_of(key, rules), rules, kinds)
        return scrubbed
    if isinstance(value, list | tuple):
        items = []
        for inner in value:
            items.append((yield from _scrubbed(inner, name, rules, kinds)) if _holds_text(inner) else inner)
        yield
        return items
    return value


def _holds_text(value: Any) -> bool:
    return isinstance(value, str | Mapping | list | tuple)


def _scrubbed_under(value: str, name: _Name, rules: Sequence[SecretRule], kinds: set[Kind]) -> Steps[str]:
    """Scrub a string in an object: first together with its key, then on its own."""
    if name.rules and value and "\n" not in value and '"' not in value:
        head, near, far = f'{name.text}="', value[:_MAX_VALUE_CHARS], value[_MAX_VALUE_CHARS:]
        tail = "" if far else '"'
        with_key = yield from scrub(f"{head}{near}{tail}", name.rules)
        if with_key.text.startswith(head) and with_key.text.endswith(tail):
            kinds.update(with_key.kinds)
            value = with_key.text[len(head) :].removesuffix(tail) + far
    scrubbed = yield from scrub(value, rules)
    kinds.update(scrubbed.kinds)
    yield
    return scrubbed.text


Find = tuple[int, int, Kind]


def _found(text: str, rules: Sequence[SecretRule]) -> Steps[list[Find]]:
    """Find the matches of all rules, by position; overlapping matches are merged."""
    finds: list[Find] = []
    start, end = 0, min(WINDOW, len(text))
    while True:
        lowered = text[start:end].lower()
        cut_off = [end - OVERLAP]
        for rule in rules:
            if not rule.hints or _has_hint(rule, lowered):
                matches = list(_finds_of(rule, text, start, end))
                # Read a match at the end of the window again from its start, because it may be longer.
                if matches and matches[-1][1] >= end < len(text) and matches[-1][0] > start:
                    cut_off.append(matches.pop()[0])
                finds.extend(matches)
                if end - start > _MAX_VALUE_CHARS:
                    yield
        if end == len(text):
            return _joined(sorted(finds, key=lambda find: (find[0], -find[1])))
        start = min(cut_off)
        end = min(start + WINDOW, len(text))


def _has_hint(rule: SecretRule, lowered: str) -> bool:
    for hint in rule.hints:  # noqa: SIM110 - an `any` takes ten times as long, and this is done for each string
        if hint in lowered:
            return True
    return False


def _finds_of(rule: SecretRule, text: str, start: int, end: int) -> Iterator[Find]:
    """Yield the matches of a rule between two positions. Lookbehind sees the text before the first position."""
    covered = 0
    for match in rule.pattern.finditer(text, start, end):
        first, last = match.span(0 if rule.is_whole else match.lastindex or 0)
        if first < covered or (rule.is_token and first and text[first - 1].isalnum()):
            continue
        if rule.is_token:
            last = _end_of_word(text, last)
        covered = last
        if _is_secret(text[first:last], rule.check):
            yield first, last, rule.kind


def _end_of_word(text: str, position: int) -> int:
    ending = WORD_REST.match(text, position)
    return ending.end() if ending else position


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
    parts, position = [], 0
    for start, end, kind in finds:
        parts += [text[position:start], marker(kind)]
        position = end
    return "".join([*parts, text[position:]])


def _is_secret(found: str, check: Check) -> bool:
    if not MARKER.sub("", found).strip():
        return False
    if check == "any":
        return True
    is_value = not PLACEHOLDER.fullmatch(found) and found.rstrip(".,:;!?").lower() not in WORDS
    return is_value and (check == "value" or _is_random(found))


def _is_random(found: str) -> bool:
    """Return whether a text looks unlike a word: letters with digits, or with punctuation inside."""
    bare = found.rstrip(".,:;!?")
    if not _LETTER.search(bare) or _PLAIN.fullmatch(bare):
        return False
    return bool(_DIGIT.search(bare) or _MARK.search(bare))

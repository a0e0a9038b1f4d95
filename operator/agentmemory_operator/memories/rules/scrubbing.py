"""Take secrets out of text: what a rule finds becomes a fixed marker, so that equal texts stay equal.

Scrubbing again changes nothing: it is repeated until no rule finds more, and a marker alone is never found. Each rule
reads a text once from left to right; see `secret_patterns`.

`re` lets nobody else work until a match is over. So a long text is read in windows, and `scrub` and `scrub_object` are
generators that yield after each rule of a window and after each string: their driver may do something else there.
"""

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Kind = Literal["api-key", "bearer-token", "cloud-key", "connection-string", "jwt", "password", "private-key", "token"]
# What has to be true of a find: nothing, that it is no word or placeholder, or that it looks drawn by lot.
Check = Literal["any", "value", "random"]

MARKER = re.compile(r"\[REDACTED:[a-z-]+\]")
WORD_REST = re.compile(r"[\w-]*")

WINDOW = 64 << 10
# A secret that begins in a window ends in it, or is shorter than this and in the next as well, or is one long word.
OVERLAP = 16 << 10
# As long as rules find more: `password:password:...` takes a score, and shrinks with each.
_PASSES = 64
# Of a key, the end is what stands before its value; of a long value, the beginning is what stands behind its key.
_NAME_CHARS, _NAMED_CHARS = 128, 4096

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


Value = TypeVar("Value")
Steps = Generator[None, None, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRule:
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
    """What stands in a secret's place."""
    return f"[REDACTED:{kind}]"


def scrub(text: str, rules: Sequence[SecretRule]) -> Steps[Scrubbed]:
    """The text without its secrets."""
    kinds: set[Kind] = set()
    for _ in range(_PASSES):
        finds = yield from _found(text, rules)
        if not finds:
            break
        kinds.update(kind for _, _, kind in finds)
        text = _replaced(text, finds)
    return Scrubbed(text, frozenset(kinds))


def scrub_object(value: Mapping[str, Any], rules: Sequence[SecretRule]) -> Steps[ScrubbedObject]:
    """The object with every string in it scrubbed, as what follows its key: `{"password": "x"}` holds one."""
    kinds: set[Kind] = set()
    scrubbed = yield from _scrubbed(value, _Name("", ()), rules, kinds)
    return ScrubbedObject(scrubbed, frozenset(kinds))


@dataclass(frozen=True, slots=True)
class _Name:
    """A key, and the rules that it may be a part of what they find."""

    text: str
    rules: Sequence[SecretRule]


def _name_of(key: str, rules: Sequence[SecretRule]) -> _Name:
    text = key[-_NAME_CHARS:]
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
    """Scrub a string that stands under a key: first as the value of that name, then by itself."""
    if name.rules and value and "\n" not in value and '"' not in value:
        head, near, far = f'{name.text}="', value[:_NAMED_CHARS], value[_NAMED_CHARS:]
        tail = "" if far else '"'
        named = yield from scrub(f"{head}{near}{tail}", name.rules)
        if named.text.startswith(head) and named.text.endswith(tail):
            kinds.update(named.kinds)
            value = named.text[len(head) :].removesuffix(tail) + far
    scrubbed = yield from scrub(value, rules)
    kinds.update(scrubbed.kinds)
    yield
    return scrubbed.text


Find = tuple[int, int, Kind]


def _found(text: str, rules: Sequence[SecretRule]) -> Steps[list[Find]]:
    """What the rules find, by place; where finds overlap, they are one."""
    finds: list[Find] = []
    start, end = 0, min(WINDOW, len(text))
    while True:
        lowered = text[start:end].lower()
        cut_off = [end - OVERLAP]
        for rule in rules:
            if not rule.hints or _has_hint(rule, lowered):
                found = list(_finds_of(rule, text, start, end))
                # What the end of the window cuts through is read again from where it begins.
                if found and found[-1][1] >= end < len(text) and found[-1][0] > start:
                    cut_off.append(found.pop()[0])
                finds.extend(found)
                if end - start > _NAMED_CHARS:
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
    """Yield what a rule finds between two places; it sees what is before the first, and not beyond the second."""
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
    """Whether a word looks like no word: letters with digits, or with marks inside."""
    bare = found.rstrip(".,:;!?")
    if not _LETTER.search(bare) or _PLAIN.fullmatch(bare):
        return False
    return bool(_DIGIT.search(bare) or _MARK.search(bare))

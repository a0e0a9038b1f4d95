"""Markdown of the descriptions and rules of the CRDs. The text of a rule is derived from its error message."""

import re
from collections.abc import Collection, Iterable, Iterator

from docs.site.links import ROOT, heading_of

# Text of rules with a message that only describes the fault, by the start of the message.
_WORDS = {
    "prune is empty": "At least one of `olderThanDays`, `priorityBelow` and `confidenceBelow` is given.",
    "vectors names a zone that is not allowed": "Zones in `vectors` are also in `allowed`.",
    "words names a zone that is not allowed": "Zones in `words` are also in `allowed`.",
    "words names a zone without vectors": "Zones in `words` are also in `vectors`; others are not searched.",
    "spec is immutable": "The spec cannot change after creation.",
}
_ONLY = re.compile(r"(\w+) applies only with (\w+ \w+): ")
_NEVER = re.compile(r"(\w+) cannot be used with (\w+ \w+): ")
_REFUSED = re.compile(r"(\w+) (\w+) takes no (\w+): ")
_RANGE = re.compile(r"must be [\d.]+$")
_PAGE = r"docs/([\w-]+\.md)"
_CODE = r"https?://[^\s,;)]*[\w/]|AGENTMEMORY_\w+|\b[a-z]+(?:[A-Z]\w*)+(?:\.\w+)*|\b[a-z]\w*(?:\.[a-z]\w*)+(?:/[\w-]+)?|\b[a-z]\w*_\w+"


def marked(text: str, names: Collection[str] = ()) -> str:
    """Return a description with links to the pages in it, and with names of fields, also those in `names`, as code."""
    own = "".join(rf"|\b{name}\b(?!')" for name in names)
    parts, end = [], 0
    for found in re.finditer(f"{_PAGE}|{_CODE}{own}", text):
        parts += [_escaped(text[end : found.start()]), _link(found[1]) if found[1] else f"`{found[0]}`"]
        end = found.end()
    return "".join((*parts, _escaped(text[end:])))


def rules_in_words(messages: Iterable[str], names: Collection[str] = ()) -> list[str]:
    """Return sentences for the rules of a block; rules that differ only in the field or in the value are one sentence.

    Args:
        messages: Messages of the rules.
        names: Fields of the block.
    """
    given = list(messages)
    grouped = [*_grouped(given, _ONLY, "only with"), *_grouped(given, _NEVER, "not with"), *_refused(given)]
    return [*grouped, *_others(given, names)]


def _grouped(messages: list[str], pattern: re.Pattern[str], words: str) -> Iterator[str]:
    fields: dict[str, list[str]] = {}
    for message in messages:
        if found := pattern.match(message):
            fields.setdefault(found[2], []).append(found[1])
    for value, names in fields.items():
        name, choice = value.split()
        yield f"{_joined(names)}: {words} `{name}: {choice}`."


def _refused(messages: list[str]) -> Iterator[str]:
    """Yield fields and the values of another field with which they are refused; equal values are one sentence."""
    values: dict[tuple[str, str], list[str]] = {}
    for message in messages:
        if found := _REFUSED.match(message):
            values.setdefault((found[1], found[3]), []).append(found[2])
    fields: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (name, field), choices in values.items():
        fields.setdefault((name, tuple(sorted(choices))), []).append(field)
    for (name, refused), names in fields.items():
        yield f"{_joined(names)}: not with `{name}` {_joined(refused, 'or')}."


def _others(messages: list[str], names: Collection[str]) -> Iterator[str]:
    for message in messages:
        known = next((words for start, words in _WORDS.items() if message.startswith(start)), "")
        if known:
            yield known
        elif not (_RANGE.match(message) or any(pattern.match(message) for pattern in (_ONLY, _NEVER, _REFUSED))):
            statement = marked(re.split(r": (?!//)", message)[0], names)
            yield statement[0].upper() + statement[1:] + "."


def _joined(names: Iterable[str], word: str = "and") -> str:
    *first, last = [f"`{name}`" for name in names]
    return f"{', '.join(first)} {word} {last}" if first else last


def _link(page: str) -> str:
    return f"[{heading_of((ROOT / 'docs' / page).read_text(), '')}](../{page})"


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")

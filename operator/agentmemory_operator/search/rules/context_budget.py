"""Choose the memories of a context and write its text, within a number of tokens.

`STEPS` shares the budget between the sections, in order: each step may use up to a share of the whole budget for a
section, of what is left. The last steps give what remains to sections that have more. Within a section the memories are
taken in the given order. One that does not fit is left out, and shorter ones after it may still fit; of the turns of a
session, none follows: they would have a gap.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, tzinfo
from itertools import count as count_from
from typing import Literal

from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.search.rules.context_text import (
    CUT_MARK,
    END,
    NOTE,
    START,
    TITLES,
    SectionName,
    day_of,
    heading_of,
    memory_text,
)

LeftOutReason = Literal["budget", "repeated", "sent", "locked"]

STEPS: tuple[tuple[SectionName, float], ...] = (
    ("facts", 0.2),
    ("recent", 0.3),
    ("relevant", 1.0),
    ("recent", 1.0),
    ("facts", 1.0),
)
"""Sections in the order in which they are filled, each with its share of the budget."""

MAX_LINE_SHARE = 0.25
"""Share of the budget that one memory may use. A longer one is cut."""

MIN_LINE_TOKENS = 16
# Memories in a row that do not fit, after which the rest of a section is not tried.
MAX_MISSES = 20
MAX_MISSED_CHARS = 200_000
"""Maximum characters of memories that are tokenized and then do not fit. It bounds the time that long texts take."""

# Maximum characters of a token of the tokenizers in use, for texts without repeated spaces.
MAX_CHARS_PER_TOKEN = 16
MAX_NUMBER = "999"
"""Longest number of a line. Lines are counted with it until they have their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMeasure:
    """Tokenizer of a context.

    The tokens of a text must be those of its first line and, by `count_line`, of each further one. The tokens of a
    number must depend on its length only.

    Attributes:
        name: Name of the tokenizer, for the caller.
        count: Returns the number of tokens of a text.
        count_line: Returns the number of tokens that a further line adds to a text, with its line break.
        cut: Returns the beginning of a text, with at most so many tokens.
    """

    name: str
    count: Callable[[str], int]
    count_line: Callable[[str], int]
    cut: Callable[[str, int], str]


@dataclass(frozen=True, slots=True)
class ContextLine:
    """A memory in a context.

    Attributes:
        text: Text of its line, without the number.
        tokens: Tokens of the line with its number and line break, without headings.
        is_cut: True if the end of the memory is missing.
        number: Number in the text, from 1; 0 until the text is written.
        day: Day of the memory in the request's time zone.
    """

    record: MemoryRecord
    text: str
    tokens: int
    day: date
    is_cut: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class LeftOutMemory:
    """A memory that is not in a section of a context.

    Attributes:
        reason: budget: it does not fit; repeated: another line has it or its text; sent: a message of the request has
            its text; locked: its zone's key is unavailable.
    """

    section: SectionName
    memory_id: str
    reason: LeftOutReason


@dataclass(frozen=True, slots=True)
class ComposedContext:
    """Text of a context, with its lines by section in the order of the text."""

    text: str
    tokens: int
    sections: Mapping[SectionName, Sequence[ContextLine]]
    left_out: Sequence[LeftOutMemory]


@dataclass(slots=True)
class _Page:
    """Text under construction.

    Attributes:
        remaining: Tokens of the budget that are not used, if each number has the maximum length.
        missed_chars: Characters that may still be tokenized for memories that do not fit.
        lines: Chosen lines by section, in the order of choice.
        sent: Texts of the messages that the caller's prompt has already.
        days: Days of `relevant` that have a heading.
        ids, texts: Ids and texts of the chosen memories.
    """

    measure: TextMeasure
    zone: tzinfo
    budget: int
    remaining: int
    lines: dict[SectionName, list[ContextLine]]
    sent: frozenset[str]
    days: set[date] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    missed_chars: int = MAX_MISSED_CHARS

    @property
    def line_limit(self) -> int:
        """Maximum number of tokens of a line."""
        return max(MIN_LINE_TOKENS, int(self.budget * MAX_LINE_SHARE))

    def line_of(self, record: MemoryRecord) -> ContextLine:
        """Return the line of a memory, cut if it is longer than its share of the budget."""
        text, limit = memory_text(record), self.line_limit
        day, part = day_of(record.created_at, self.zone), text[: limit * MAX_CHARS_PER_TOKEN]
        tokens = self.measure.count_line(f"{MAX_NUMBER} {part}")
        if tokens <= limit and part == text:
            return ContextLine(record, text, tokens, day)
        short = self.measure.cut(part, limit - MIN_LINE_TOKENS // 2).rstrip() + CUT_MARK
        return ContextLine(record, short, self.measure.count_line(f"{MAX_NUMBER} {short}"), day, is_cut=True)

    def heading_tokens(self, section: SectionName, day: date) -> int:
        """Return the tokens of the headings that a line of a section needs in addition."""
        tokens = 0 if self.lines[section] else self.measure.count_line(TITLES[section])
        if section != "relevant" or day in self.days:
            return tokens
        has_year = all(day.year != other.year for other in self.days)
        return tokens + self.measure.count_line(heading_of(day, has_year=has_year))

    def take(self, section: SectionName, line: ContextLine, tokens: int) -> None:
        """Add a line that uses so many tokens, with its headings."""
        self.remaining -= tokens
        self.lines[section].append(line)
        self.ids.add(line.record.id)
        self.texts.add(normalise(line.record.content))
        if section == "relevant":
            self.days.add(line.day)

    def obstacle(self, section: SectionName, record: MemoryRecord) -> LeftOutReason | None:
        """Return the reason why a memory is no line whatever the budget; None if it may be one."""
        if record.locked or not record.content:
            return "locked"
        content = normalise(record.content)
        if content in self.sent:
            return "sent"
        # Two turns of a conversation may have equal texts, for example "yes".
        is_repeated = record.id in self.ids or (section != "recent" and content in self.texts)
        return "repeated" if is_repeated else None


def normalise(text: str) -> str:
    """Return a text in lower case, with single spaces."""
    return " ".join(text.split()).casefold()


def compose_context(
    candidates: Mapping[SectionName, Sequence[MemoryRecord]],
    measure: TextMeasure,
    *,
    budget: int,
    zone: tzinfo,
    sent: Sequence[str] = (),
) -> ComposedContext:
    """Choose from the candidates of each section, and write the text.

    Args:
        candidates: Memories by section, in the order in which they are taken; `recent` newest first.
        budget: Maximum number of tokens of the text. At least those of the frame.
        zone: Time zone of the days.
        sent: Texts that the caller's prompt has already.
    """
    frame = measure.count(_render({}))
    page = _Page(measure, zone, budget, budget - frame, {name: [] for name in TITLES}, frozenset(map(normalise, sent)))
    waiting = {name: list(candidates.get(name, ())) for name in TITLES}
    left_out: list[LeftOutMemory] = []
    for section, share in STEPS:
        waiting[section] = list(_fill(page, section, waiting[section], int(budget * share), left_out))
    left_out += (LeftOutMemory(name, record.id, "budget") for name in TITLES for record in waiting[name])
    sections = _numbered(page)
    saved = sum(old.tokens for lines in page.lines.values() for old in lines) - sum(
        line.tokens for lines in sections.values() for line in lines
    )
    return ComposedContext(_render(sections), budget - page.remaining - saved, sections, left_out)


def _fill(
    page: _Page, section: SectionName, records: Sequence[MemoryRecord], limit: int, left_out: list[LeftOutMemory]
) -> Iterator[MemoryRecord]:
    """Add memories to a section until `limit` tokens are used; yield those that do not fit now."""
    used, misses = 0, 0
    for record in records:
        if reason := page.obstacle(section, record):
            left_out.append(LeftOutMemory(section, record.id, reason))
            continue
        room = min(page.remaining, limit - used)
        chars = min(len(record.content), page.line_limit * MAX_CHARS_PER_TOKEN)
        if misses < MAX_MISSES and room >= MIN_LINE_TOKENS // 4 and chars <= page.missed_chars:
            line = page.line_of(record)
            tokens = line.tokens + page.heading_tokens(section, line.day)
            if tokens <= room:
                page.take(section, line, tokens)
                used, misses = used + tokens, 0
                continue
            page.missed_chars -= chars
        misses = MAX_MISSES if section == "recent" else misses + 1
        yield record


def _numbered(page: _Page) -> dict[SectionName, list[ContextLine]]:
    """Return the lines of each section in the order of the text, with their numbers."""
    widths = [page.measure.count_line(f"{'1' * digits} x") for digits in range(1, len(MAX_NUMBER) + 1)]
    numbers, sections = count_from(1), {}
    for name, lines in page.lines.items():
        ordered = lines if name == "facts" else sorted(lines, key=lambda line: (line.record.created_at, line.record.id))
        # Where clocks go back over midnight, a day begins twice. It has one heading.
        ordered = sorted(ordered, key=lambda line: line.day) if name == "relevant" else ordered
        sections[name] = [
            replace(line, number=number, tokens=line.tokens - widths[-1] + widths[len(str(number)) - 1])
            for line, number in zip(ordered, numbers, strict=False)
        ]
    return sections


def _render(sections: Mapping[SectionName, Sequence[ContextLine]]) -> str:
    rows = [START, NOTE]
    for name, lines in sections.items():
        rows += [TITLES[name]] if lines else []
        day = None
        for line in lines:
            if name == "relevant" and line.day != day:
                rows.append(heading_of(line.day, has_year=day is None or line.day.year != day.year))
                day = line.day
            rows.append(f"{line.number} {line.text}")
    return "\n".join([*rows, END])

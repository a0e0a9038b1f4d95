"""Find and rewrite links in Markdown pages, and compute the anchors of headings."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2`* *$", re.M | re.S)
_LINK = re.compile(r"(?<!\\)\]\(([^()\s]+)\)")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.I)


def links_of(text: str) -> Iterator[str]:
    """Yield the target of each link and image of a page, except addresses of other sites."""
    for target in _LINK.findall(_without_code(text)):
        if not _ELSEWHERE.match(target):
            yield target


def rewritten(text: str, change: Callable[[str], str]) -> str:
    """Return the page with a new target for each link; code is unchanged."""
    return outside_code(text, lambda part: _with_links(part, change))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return the page with all parts outside code changed."""
    parts, end = [], 0
    for start, stop in _code_spans(text):
        parts += [change(text[end:start]), text[start:stop]]
        end = stop
    return "".join((*parts, change(text[end:])))


def heading_of(text: str, anchor: str) -> str:
    """Return the heading with an anchor, or the page's title if the anchor is empty; '' if there is none."""
    headings = re.findall(r"^#{1,6} +(.+?) *#*$", _FENCE.sub("", text), re.M)
    return next((heading for heading in headings if not anchor or slug_of(heading) == anchor), "")


def opening_of(text: str) -> str:
    """Return the first sentence below a page's title, without links; empty if no paragraph is there."""
    below = re.split(r"^# .+$", text, maxsplit=1, flags=re.M)[-1]
    paragraph = " ".join(below.strip().partition("\n\n")[0].split())
    if not re.match(r"[\w`\[*]", paragraph):
        return ""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", paragraph).replace("**", "")
    return re.split(r"(?<=\.)\s+(?=[A-Z`])", plain)[0]


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page: those of its headings, as on GitHub and on the site, and explicit ones."""
    found: dict[str, int] = {}
    anchors = set(re.findall(r'<a id="([\w-]+)">', text))
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", _FENCE.sub("", text), re.M):
        slug = slug_of(heading)
        number = found.get(slug, 0)
        found[slug] = number + 1
        anchors.add(f"{slug}-{number}" if number else slug)
    return anchors


def slug_of(heading: str) -> str:
    """Return the anchor of a heading."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def _with_links(text: str, change: Callable[[str], str]) -> str:
    def changed(match: re.Match[str]) -> str:
        return match[0] if _ELSEWHERE.match(match[1]) else f"]({change(match[1])})"

    return _LINK.sub(changed, text)


def _code_spans(text: str) -> list[tuple[int, int]]:
    fences = [match.span() for match in _FENCE.finditer(text)]
    inline = [match.span() for match in re.finditer(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", text)]
    kept = [span for span in inline if not any(start <= span[0] < stop for start, stop in fences)]
    return sorted((*fences, *kept))


def _without_code(text: str) -> str:
    parts, end = [], 0
    for start, stop in _code_spans(text):
        parts.append(text[end:start])
        end = stop
    return "".join((*parts, text[end:]))

"""Texts that users meet are without the words that CONTRIBUTING.md rules out."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.words import (
    ROOT,
    Text,
    chart_texts,
    command_texts,
    crd_texts,
    http_texts,
    page_texts,
    pattern_of,
    source_texts,
    words_not_used,
)

NOT_USED = pattern_of(words_not_used())


def decisions() -> Iterator[Text]:
    """Yield the decision records, without their list of words not used."""
    return page_texts(*sorted((ROOT / "docs" / "adr").glob("*.md")))


def pages() -> Iterator[Text]:
    """Yield what users read on pages."""
    readmes = [ROOT / "README.md", ROOT / "client" / "README.md", *sorted((ROOT / "examples").rglob("*.md"))]
    return page_texts(*readmes, *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "adr"))


TEXTS: dict[str, Callable[[], Iterator[Text]]] = {
    "chart": chart_texts,
    "commands": command_texts,
    "crds": crd_texts,
    "decisions": decisions,
    "http": http_texts,
    "pages": pages,
    "sources": source_texts,
}


@pytest.mark.parametrize("area", TEXTS)
def test_texts_that_users_meet_are_without_words_that_are_not_used(area: str) -> None:
    texts = [(place, text) for place, text in TEXTS[area]() if text]
    met = [f"{place}: {found[0]!r} in {text[:200]!r}" for place, text in texts for found in NOT_USED.finditer(text)]

    assert len(texts) > 1
    assert met == [], "\n".join(met)


def test_each_command_and_option_has_a_help() -> None:
    assert [place for place, text in command_texts() if not text] == []

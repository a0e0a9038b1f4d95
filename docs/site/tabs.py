"""Tabs on the site for consecutive blocks in curl, Python and TypeScript."""

import itertools
import re

LANGUAGES = {"console": "curl", "python": "Python", "ts": "TypeScript"}
_GROUP = re.compile("\n".join(rf"^```{language}\n(?:(?!```).*\n)*```\n" for language in LANGUAGES), re.M)
_BLOCK = re.compile(r"^```(\w+)\n.*?^```$", re.M | re.S)


def with_tabs(text: str) -> str:
    """Return the page with tabs in place of three adjacent blocks in the languages, in this order."""
    numbers = itertools.count(1)
    return _GROUP.sub(lambda group: _tabs(group[0], f"tabs-{next(numbers)}"), text)


def _tabs(group: str, name: str) -> str:
    labels, parts = [], []
    for block in _BLOCK.finditer(group):
        language = block[1]
        first = "" if parts else " checked"
        labels.append(
            f'<input type="radio" name="{name}" id="{name}-{language}" value="{language}"{first}>'
            f'<label for="{name}-{language}">{LANGUAGES[language]}</label>'
        )
        parts += [_html('<div class="tab">'), block[0] + "\n", _html("</div>")]
    return "\n".join([_html('<div class="tabs">\n' + "\n".join(labels)), *parts, _html("</div>")])


def _html(text: str) -> str:
    return f"```{{raw}} html\n{text}\n```\n"

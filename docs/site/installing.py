"""Installation commands of the pages: from a checkout, until a release is on the package indexes.

A page has both variants. The current one is between the markers, the other one in the comment:

    <!-- checkout -->
    Text for a checkout.
    <!-- published
    Text with the names on the indexes.
    -->

`.venv/bin/python -m docs.site.installing` keeps only the variant of `PUBLISHED` in all pages.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from docs.site.links import ROOT

PUBLISHED = False
"""True from the first release on: `make docs` then shows the names on the indexes."""
FOLDERS = ("docs", "examples", "client", "client-ts", "devserver")
_BOTH = re.compile(r"^<!-- checkout -->\n(?P<checkout>.*?)^<!-- published\n(?P<published>.*?)^-->\n", re.M | re.S)


def installed(text: str, *, published: bool) -> str:
    """Return a page with only one of the two variants."""
    return _BOTH.sub(lambda both: both["published" if published else "checkout"], text)


def pages() -> Iterator[Path]:
    """Yield the path of each page that may have both variants."""
    yield from ROOT.glob("*.md")
    for folder in FOLDERS:
        found = sorted((ROOT / folder).rglob("*.md"))
        yield from (path for path in found if "node_modules" not in path.parts)


def main() -> None:
    """Keep one variant in all pages, including the READMEs of the packages."""
    for path in pages():
        text = path.read_text()
        if (chosen := installed(text, published=PUBLISHED)) != text:
            path.write_text(chosen)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()

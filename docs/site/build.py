"""Build the site into dist/docs: stage the pages, run the generator strictly, and check all links within the site.

`.venv/bin/python -m docs.site.build`
"""

import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.cmd.build import main as sphinx

from docs.site.links import ROOT
from docs.site.reference import reference_pages
from docs.site.stage import Stage

OUT = ROOT / "dist" / "docs"
STAGED = ROOT / "dist" / "docs-source"
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """Anchors, links and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the anchor, link and loaded file of a tag."""
        values = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := values.get(name))}
        if tag == "a" and (href := values.get("href")):
            self.links.append(href)
        if tag in LOADED and values.get("rel") not in ("canonical", "next", "prev") and (at := values.get(LOADED[tag])):
            self.loads.append(at)


def main() -> int:
    """Build and check the site; return 0 if there are no faults."""
    for folder in (OUT, STAGED):
        shutil.rmtree(folder, ignore_errors=True)
    Stage(STAGED, reference_pages()).write()
    options = ["-b", "html", "-W", "--keep-going", "-q", "-j", "auto", "-c", str(Path(__file__).parent)]
    if status := sphinx([*options, str(STAGED), str(OUT)]):
        return status
    faults = list(faults_of(OUT))
    print(*faults or [f"{OUT.relative_to(ROOT)}/index.html"], sep="\n")
    return 1 if faults else 0


def faults_of(folder: Path) -> Iterator[str]:
    """Yield each link without a target, and each file that a page or style sheet would load from another host."""
    pages = {path: Page(path.read_text()) for path in folder.rglob("*.html")}
    for path, page in pages.items():
        name = path.relative_to(folder)
        yield from (f"{name}: loads {at}" for at in page.loads if urlsplit(at).netloc)
        yield from (f"{name}: {link} leads nowhere" for link in page.links if not _has_target(path, link, pages))
    for path in folder.rglob("*.css"):
        yield from (
            f"{path.name}: loads {at}"
            for at in re.findall(r"(?:@import|url\()\s*['\"]?(https?://[^'\")]+)", path.read_text())
        )


def _has_target(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target in pages and parts.fragment:
        return unquote(parts.fragment) in pages[target].ids
    return target.is_file()


if __name__ == "__main__":
    sys.exit(main())

"""Sources for the generator: the Markdown of the repository, and a page for each linked file."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import yaml

from docs.site import installing
from docs.site.links import ROOT, heading_of, opening_of, outside_code, rewritten, slug_of
from docs.site.tabs import with_tabs

MAX_FILE_BYTES = 100_000
"""Maximum size of a linked file that is shown on its page."""
LANGUAGES = {".yaml": "yaml", ".json": "json", ".py": "python", ".sh": "sh", ".mjs": "js", ".ts": "ts", ".toml": "toml"}
HOME = "docs/index.md"
EXAMPLES = "examples/README.md"
GENERATED = ("reference/", "claims/")
# A link with a file name or an ADR number as text. The site shows the title of the page instead.
_NAMED = re.compile(r"\[(?:[\w-]+/)*(?:[\w-]+\.md|\d{4})\]\(([^()\s#]+\.md)(?:#([\w-]+))?\)")
_DIAGRAM = re.compile(r"^!\[([^]]*)\]\((diagrams/[\w-]+\.svg)\)$", re.M)


@dataclass(slots=True)
class Stage:
    """Sources of the generator, laid out in a folder.

    Attributes:
        folder: Folder to write to.
        generated: Pages generated from code, by path.
        places: Path on the site of each page, by its path in the repository.
        files: Linked files and folders other than pages.
    """

    folder: Path
    generated: dict[str, str]
    places: dict[str, str] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)

    def write(self) -> None:
        """Write all pages, and a page for each linked file."""
        sections = self._sections()
        listed = [page for pages in sections.values() for page in pages]
        self.places = {page: place_of(page) for page in (HOME, *listed)}
        if len(set(self.places.values())) < len(self.places):
            raise SystemExit("two pages have the same place")
        for page, text in self.generated.items():
            self._put(page, text)
        for page in self.places.keys() - self.generated.keys():
            self._put(self.places[page], self._page(page))
        for name, pages in sections.items():
            self._put(_group_place(name), self._group(name, pages))
        self._put("index.md", _home(sections), adds=True)
        for name in sorted(self.files):
            self._put(_file_place(name), _file_page(name))

    def _sections(self) -> dict[str, list[str]]:
        nav = yaml.safe_load((ROOT / "docs" / "site" / "nav.yaml").read_text())
        sections = {
            name: [page for entry in entries for page in self._matching(entry)] for name, entries in nav.items()
        }
        listed = {page for pages in sections.values() for page in pages}
        unlisted = sorted({_name(path) for path in (ROOT / "docs").rglob("*.md")} - listed - {HOME})
        return sections | ({"More": unlisted} if unlisted else {})

    def _matching(self, entry: str) -> list[str]:
        generated = sorted(page for page in self.generated if PurePosixPath(page).match(entry))
        if generated or "*" not in entry:
            return generated or [entry]
        return sorted(_name(path) for path in ROOT.glob(entry))

    def _page(self, page: str) -> str:
        text = installing.installed((ROOT / page).read_text(), published=installing.PUBLISHED)
        text = re.sub(r'^<a id="([\w-]+)"></a>', r"(\1)=\n", text, flags=re.M)
        text = outside_code(text, lambda part: _NAMED.sub(lambda link: self._with_title(page, link), part))
        text = rewritten(_DIAGRAM.sub(_inlined(page), text), lambda target: self._target(page, target))
        is_example = page.startswith("examples/") and page != EXAMPLES
        return text + self._contents(page) if is_example else with_tabs(text)

    def _contents(self, page: str) -> str:
        """Return the other files of a folder of examples, as sections."""
        folder = (ROOT / page).parent
        names = [_name(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name != "README.md"]
        return "".join(["\n\n## Files\n\n", *(_file_section(name, level=3) for name in names)])

    def _with_title(self, page: str, link: re.Match[str]) -> str:
        """Return a link with the title of its target as text."""
        path = (ROOT / page).parent / link[1]
        title = heading_of(path.read_text(), link[2] or "") if path.is_file() else ""
        return f"[{title.replace('[', '').replace(']', '')}]{link[0][link[0].index('](') + 1 :]}" if title else link[0]

    def _target(self, page: str, target: str) -> str:
        path, mark, anchor = target.partition("#")
        if not path:
            return target
        name = _name((ROOT / page).parent / path)
        for known in (name, f"{name}/README.md"):
            if known in self.places:
                return _relative(self.places[page], self.places[known]) + mark + anchor
        if not (ROOT / name).exists():
            raise SystemExit(f"{page}: {target} is not there")
        if name.endswith(".webp"):
            return _relative(self.places[page], self._picture(name))
        self.files.add(name)
        return _relative(self.places[page], _file_place(name)) + mark + anchor

    def _picture(self, name: str) -> str:
        """Copy a picture; return its place."""
        place = f"pictures/{PurePosixPath(name).name}"
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / name).read_bytes())
        return place

    def _group(self, name: str, pages: list[str]) -> str:
        """Build the page of a group: a card with the opening of each page, and their order for the generator."""
        places = [self.places[page] for page in pages]
        rows = [
            f"- [{title}](../{place})\n\n  {opening}"
            for place in places
            for title, opening in [self._read_opening(place)]
        ]
        listed = "\n".join(f"/{place.removesuffix('.md')}" for place in places)
        return "\n\n".join(
            [f"# {name}", "````{container} cards", *rows, "````", f"```{{toctree}}\n:hidden:\n\n{listed}\n```\n"]
        )

    def _read_opening(self, place: str) -> tuple[str, str]:
        """Return the title and the first sentence of a written page."""
        text = (self.folder / place).read_text()
        title = heading_of(text, "").replace("[", "").replace("]", "")
        return title, "" if place.startswith("adr/") else opening_of(text)

    def _put(self, place: str, text: str, *, adds: bool = False) -> None:
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.read_text() + text if adds else text)


def place_of(page: str) -> str:
    """Return the path of a page on the site: pages of docs/ at the top, a README under the name of its folder."""
    folder, name = PurePosixPath(page).parent, PurePosixPath(page).name
    if page.startswith(("docs/", *GENERATED)):
        return page.removeprefix("docs/")
    place = f"{folder}.md" if name == "README.md" else page
    return place if page.startswith("examples/") else f"repository/{place}"


def _group_place(name: str) -> str:
    return f"groups/{slug_of(name)}.md"


def _home(sections: Iterable[str]) -> str:
    groups = "\n".join(_group_place(name).removesuffix(".md") for name in sections)
    return f"\n```{{toctree}}\n:hidden:\n\n{groups}\n```\n"


def _name(path: Path) -> str:
    return path.resolve().relative_to(ROOT).as_posix()


def _relative(page: str, target: str) -> str:
    up = len(PurePosixPath(page).parts) - 1
    return "../" * up + target


def _inlined(page: str) -> Callable[[re.Match[str]], str]:
    def drawing(match: re.Match[str]) -> str:
        svg = ((ROOT / page).parent / match[2]).read_text()
        return f'```{{raw}} html\n<figure class="diagram" role="img" aria-label="{match[1]}">\n{svg}</figure>\n```'

    return drawing


def _file_place(name: str) -> str:
    return f"files/{name}.md"


def _file_page(name: str) -> str:
    path = ROOT / name
    names = sorted(_name(each) for each in path.iterdir() if each.is_file()) if path.is_dir() else [name]
    return "".join([f"---\norphan: true\n---\n\n# {name}\n\n", *(_file_section(each, level=2) for each in names)])


def _file_section(name: str, *, level: int) -> str:
    path = ROOT / name
    text = (
        path.read_text()
        if path.stat().st_size <= MAX_FILE_BYTES
        else "(too long to show here; it is in the repository)"
    )
    return f"{'#' * level} {path.name}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n\n"

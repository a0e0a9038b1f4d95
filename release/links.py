"""Make the links of a page absolute, for where it is read outside the repository: indexes, registries, releases."""

import posixpath
import re

from release.commands import Release

LINK = re.compile(r'(?P<before>\]\(|\b(?:src|srcset|href)=")(?P<target>[^)"\s]+)')
IMAGES = (".svg", ".png", ".gif", ".webp")


def absolute(text: str, release: Release, folder: str = "") -> str:
    """Return a page of a folder of the sources with links to files of the tag; images as they are stored."""

    def change(link: re.Match[str]) -> str:
        target = link["target"]
        if target.startswith("#") or re.match(r"\w+:", target):
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        return link["before"] + release.url(path, "raw" if path.endswith(IMAGES) else "blob")

    return LINK.sub(change, text)

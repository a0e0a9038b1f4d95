"""Absolute links, for pages that are shown outside the repository: on indexes, registries and releases."""

import posixpath
import re

from release.commands import Release

LINK = re.compile(r'(?P<before>\]\(|\b(?:src|srcset|href)=")(?P<target>[^)"\s]+)')
IMAGES = (".svg", ".png", ".gif", ".webp")


def absolute(text: str, release: Release, folder: str = "") -> str:
    """Return a page of `folder` with absolute links to files of the release; images are raw files."""

    def change(link: re.Match[str]) -> str:
        target = link["target"]
        if target.startswith("#") or re.match(r"\w+:", target):
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        return link["before"] + release.url(path, "raw" if path.endswith(IMAGES) else "blob")

    return LINK.sub(change, text)

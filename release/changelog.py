"""Section of a version in CHANGELOG.md, as release notes and as list of changes for Artifact Hub."""

import re

from release.commands import ROOT, Release, expect
from release.links import absolute

UNPUBLISHED = re.compile(r"(?m)^## Unreleased\n(?P<text>.*?)(?=^## )", re.S)
# Artifact Hub's kinds; other headings, such as Limits or Breaking, are "changed".
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)]*)\)")


def read_section(version: str, text: str) -> str:
    """Return the section of a version.

    Raises:
        CheckFailed: If there is no such section, or Unreleased is not empty.
    """
    part = re.search(rf"(?m)^## {re.escape(version)}(?: [^\n]*)?\n(?P<text>.*?)(?=^## |\Z)", text, re.S)
    expect(part, f"CHANGELOG.md has no section '## {version}'")
    left = UNPUBLISHED.search(text)
    expect(left is None or not left["text"].strip(), f"CHANGELOG.md has lines under Unreleased: move them to {version}")
    assert part is not None
    return part["text"].strip() + "\n"


def notes(release: Release) -> str:
    """Return the release notes, with absolute links."""
    return absolute(read_section(release.version, (ROOT / "CHANGELOG.md").read_text()), release)


def changes(section: str) -> list[dict[str, str]]:
    """Return each item of a section with its kind, without markup."""
    found = []
    for heading, text in re.findall(r"(?m)^### ([^\n]+)\n(.*?)(?=^### |\Z)", section, re.S):
        kind = heading.lower() if heading.lower() in KINDS else "changed"
        for item in re.split(r"(?m)^- ", text)[1:]:
            plain = LINK.sub(r"\1", " ".join(item.split())).replace("**", "").replace("`", "")
            found.append({"kind": kind, "description": plain})
    return found

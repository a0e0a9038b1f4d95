"""docs/glossary.md: the short names of the kinds."""

import re

import yaml

from tests.support.pages import DOCS


def test_short_names_are_those_of_the_definitions() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+), .+ \| `(\w+)` \|$", (DOCS / "glossary.md").read_text(), re.M)
    names = [yaml.safe_load(path.read_text())["spec"]["names"] for path in (DOCS.parent / "crds").glob("*.yaml")]

    assert rows == sorted((short, name["kind"], name["plural"]) for name in names for short in name["shortNames"])

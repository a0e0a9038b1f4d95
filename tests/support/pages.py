"""The commands that a page of the documentation shows: lines after `$ ` in its console blocks."""

import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def commands_of(page: str, heading: str = "") -> list[str]:
    """Return the commands of a page, or of the part under one heading, without comments."""
    text = (DOCS / page).read_text()
    if heading:
        text = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [re.sub(r"\s+# .*", "", line[2:]) for line in lines]

"""docs/tuning.md: cost and savings of quantization as in the estimate."""

import math
import re
from dataclasses import replace

import pytest

from agentmemory_operator.collections.rules.estimate import (
    MIB,
    Layout,
    estimate,
    layout_of,
    profile_layout,
    quantized_in_ram,
)
from tests.support.pages import DOCS
from tests.support.spec.plans import desired_of

PAGE = (DOCS / "tuning.md").read_text()
ROW = re.compile(r"^\| (\w+) \| ([\d,]+) \| (\w+) \| ([\d,]+) \| ([\d,]+|on disk) \| ([\d,]+) \| ([\d,]+) \|$", re.M)
LARGE = replace(desired_of(), size=1536)


def mib(size: float) -> str:
    return f"{math.ceil(size / MIB):,}"


def layout_named(name: str, memories: int) -> Layout:
    return layout_of(LARGE) if name == "cortex" else profile_layout(name, LARGE, memories)


@pytest.mark.parametrize("row", ROW.findall(PAGE), ids=lambda row: f"{row[0]} {row[1]}")
def test_row_matches_the_estimate(row: tuple[str, ...]) -> None:
    name, count, kind, copies, vectors, whole, without = row
    memories = int(count.replace(",", ""))
    layout = layout_named(name, memories)
    found = quantized_in_ram(layout, memories)

    assert copies == (mib(found.copies) if found else "0")
    assert kind == (type(layout.quantization).__name__.removesuffix("Quantization") if layout.quantization else "none")
    assert vectors == ("on disk" if layout.is_cold else mib(memories * (layout.vector_bytes + 2)))
    assert whole == mib(estimate(layout, memories).ram)
    assert without == mib(estimate(replace(layout, quantization=None, is_cold=False), memories).ram)


def test_every_layout_has_its_rows() -> None:
    assert len(ROW.findall(PAGE)) == 12

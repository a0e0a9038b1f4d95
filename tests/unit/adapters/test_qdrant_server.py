"""Process numbers in the metrics of a Qdrant server."""

from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.server import parse_process
from agentmemory_operator.collections.rules.capacity import Process

METRICS = """\
# HELP collections_total number of collections
# TYPE collections_total gauge
{0}collections_total 316
# TYPE collection_points gauge
{0}collection_points{{id="process_open_mmaps 7"}} 3
# TYPE process_open_mmaps gauge
{0}process_open_mmaps 65100
{0}system_max_mmaps 65530
{0}process_open_fds 4096
{0}process_max_fds 0
"""


@pytest.mark.parametrize("prefix", ["", "qdrant_", "my:own_"])
def test_numbers_are_found_under_any_prefix(prefix: str) -> None:
    found = parse_process(METRICS.format(prefix))

    assert found == Process(open_maps=65_100, max_maps=65_530, open_files=4_096, max_files=0, collections=316)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "<html>no metrics</html>",
        "process_open_mmaps -1",
        "process_open_mmaps NaN",
        'process_open_mmaps{peer="a"} 5',
        "process_open_mmaps 99999999999999999999",
        "a process_open_mmaps 5",
    ],
)
def test_other_lines_are_ignored(line: str) -> None:
    assert parse_process(line) == Process()


@pytest.mark.parametrize("line", ["a", "collections_total x", "process_open_mmap_" * 20, "process_open_mmaps ", ""])
def test_parsing_an_endless_response_is_limited(line: str) -> None:
    looked: list[int] = []

    class Text(str):
        __slots__ = ()

        def find(self, *args: Any) -> int:
            looked.append(1)
            return super().find(*args)

    assert parse_process(Text(f"{line}\n" * 200_000)) == Process()
    assert len(looked) < 20_000


def test_number_is_found_after_lookalike_labels() -> None:
    labels = "".join(f'collection_points{{id="process_open_mmaps {number}"}} 3\n' for number in range(100))

    assert parse_process(f"{labels}process_open_mmaps 12\n").open_maps == 12

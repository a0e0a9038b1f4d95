"""The page on connections says what the code does."""

import pathlib
import re

import yaml

from agentmemory_operator.connections.probe import PROBE_S
from agentmemory_operator.connections.rules.capabilities import SINCE
from agentmemory_operator.connections.rules.secret_hosts import HOSTS, goes_to, unlisted
from agentmemory_operator.controllers.connection import LARGEST_PROBE_GROWTH
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.runtime.queue import LANE_WIDTH, SHARE
from agentmemory_operator.spec.kinds.parse import parse_connection

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "connections.md").read_text()


def test_its_manifests_are_valid() -> None:
    documents = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]

    connections = [document for document in documents if document["kind"] != "Secret"]
    assert [parse_connection(document).metadata.name for document in connections] == ["main"]


def test_its_secret_lets_go_what_the_page_says() -> None:
    (secret,) = [
        found
        for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
        if "Secret" in (found := yaml.safe_load(block))["kind"]
    ]
    hosts = secret["metadata"]["annotations"][HOSTS]

    for url, is_listed in (
        ("http://qdrant.qdrant.svc:6333", True),
        ("http://qdrant.qdrant.svc", False),
        ("http://qdrant-0.qdrant-headless.qdrant.svc:6333", True),
        ("http://qdrant-headless.qdrant.svc:6333", False),
        ("https://api.openai.com/v1", True),
        ("https://evil.example", False),
    ):
        assert (unlisted(goes_to(url), hosts) == ()) is is_listed
    items = re.findall(r"^\| `([^` ]+)` \| (?:this|every|an IPv6)", PAGE, re.M)
    shown = ("https://api.openai.com", "http://qdrant.qdrant.svc:6333", "http://qdrant-0.qdrant-headless.qdrant.svc")
    for url in (*shown, "http://[2001:db8::1]:6333"):
        assert unlisted(goes_to(url), ",".join(items)) == ()


def test_its_table_of_capabilities_is_the_codes() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+)\.(\d+) \|$", PAGE, re.M)

    assert {name: (int(major), int(minor)) for name, major, minor in rows} == SINCE


def test_its_figures_are_the_codes() -> None:
    periods, text = Periods(), " ".join(PAGE.split())

    assert f"every {periods.probe_s:.0f} s, and up to every {periods.probe_s * LARGEST_PROBE_GROWTH:.0f} s" in text
    assert (
        f"about {periods.returning_per_s:.0f} a second, {LANE_WIDTH} at a time for each namespace on a connection"
        in text
    )
    assert f"has {SHARE} passes at a time" in text
    assert f"has {LANE_WIDTH}, all namespaces together {2 * LANE_WIDTH}" in text
    assert f"end after {PROBE_S:.0f} s" in text

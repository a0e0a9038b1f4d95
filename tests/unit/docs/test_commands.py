"""Commands on pages: run by a test, or excused in tests/golden/commands.yaml."""

import pathlib
import re
import shlex

import pytest

from agentmemory_operator.entrypoints.api.app import ROUTERS
from tests.support.pages import COMMANDS, DOCS, read_commands_by_heading
from tests.support.spec.golden import read_table

ROOT = DOCS.parent
RUNS = read_table(COMMANDS.name)
PAGES = [path.relative_to(ROOT).as_posix() for path in (*sorted(DOCS.glob("*.md")), ROOT / "README.md")]
GENERIC = {"offline", "dev", "cluster"}
ENTRIES = [(page, heading, how) for page, headings in RUNS["pages"].items() for heading, how in headings.items()]
CURLS = [
    pytest.param(command, id=f"{page} {heading} {number}")
    for page in PAGES
    for heading, commands in read_commands_by_heading(page).items()
    for number, command in enumerate(commands)
    if "/v1/" in command and command.startswith("curl")
]
ROUTES = {
    (method, re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(route.path_format))))
    for router in ROUTERS
    for route in router.routes
    for method in getattr(route, "methods", ())
}


def test_every_heading_with_commands_is_listed() -> None:
    shown = {page: set(read_commands_by_heading(page)) for page in PAGES if read_commands_by_heading(page)}

    listed = {page: set(headings) for page, headings in RUNS["pages"].items() if (ROOT / page).exists()}
    assert listed == shown


def test_listed_tests_exist() -> None:
    for page, heading, how in ENTRIES:
        if how not in GENERIC and not how.startswith("not: "):
            assert how.startswith("tests/"), how
            text = (ROOT / how).read_text()
            assert pathlib.PurePath(page).name in text or heading in text, (page, heading)


@pytest.mark.parametrize("command", CURLS)
def test_request_matches_an_api_route(command: str) -> None:
    words = shlex.split(command)
    path = next(re.sub(r"^[^/]*//", "", word) for word in words if "/v1/" in word).partition("?")[0]
    has_body = {"-d", "--data", "--data-binary"} & set(words)
    method = words[words.index("-X") + 1] if "-X" in words else "POST" if has_body else "GET"

    assert any(taken == method and pattern.fullmatch("/v1/" + path.partition("/v1/")[2]) for taken, pattern in ROUTES)

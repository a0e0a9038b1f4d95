"""Tables of docs/http-api.md and docs/access.md, compared with the code."""

import pathlib
import re

from agentmemory_operator.entrypoints.api.app import ROUTERS
from agentmemory_operator.entrypoints.api.identity.rights import VERBS
from agentmemory_operator.entrypoints.api.problems import PROBLEMS

DOCS = pathlib.Path(__file__).parents[3] / "docs"
DOCUMENT, ACCESS = (DOCS / "http-api.md").read_text(), (DOCS / "access.md").read_text()


def test_every_problem_type_is_listed() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| ([^|]+) \|$", DOCUMENT, re.MULTILINE)

    assert rows == [(problem.name, str(problem.status), problem.title) for problem in PROBLEMS]


def test_every_endpoint_is_listed_with_its_verb() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+) (/v1/\S+)` \|$", ACCESS, re.MULTILINE)

    assert sorted(rows) == sorted((verb, method, path) for (method, path), verb in VERBS.items() if verb)


def test_every_verb_belongs_to_a_route() -> None:
    listed = [route for router in ROUTERS for route in router.routes]
    routes = {(method, route.path_format) for route in listed for method in getattr(route, "methods", ())}

    assert set(VERBS) == routes

"""docs/http-api.md: the three programs of each endpoint send the example of the OpenAPI document."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentmemory_operator.entrypoints.api.examples import ANSWERS, read_requests
from agentmemory_operator.webhooks.rules.events import decode_key, verify_signature
from docs.site.links import anchors_of, slug_of
from tests.support.pages import DOCS
from tests.support.programs import ROOT, clean_environment
from tests.support.web.examples import HOOK_KEY, find_operation
from tests.support.web.http_server import serve

PAGE = (DOCS / "http-api.md").read_text()
REQUESTS = read_requests()["operations"]
RECORDED = json.loads(ANSWERS.read_text())["operations"]
SHOWN_URL = "http://127.0.0.1:8080"
CLIENT = ROOT / "client-ts"
LANGUAGES = ("console", "python", "ts")
TSC = ("--strict", "--target", "es2022", "--module", "nodenext", "--types", "node")


def install_client(folder: pathlib.Path) -> None:
    """Link the built TypeScript client and its compiler into a folder's node_modules."""
    if not (CLIENT / "dist" / "index.js").exists():
        pytest.skip("the TypeScript client is not built: make client-ts")
    modules = folder / "node_modules"
    (modules / ".bin").mkdir(parents=True)
    (modules / "agentmemory-client").symlink_to(CLIENT)
    (modules / ".bin" / "tsc").symlink_to(CLIENT / "node_modules" / "typescript" / "bin" / "tsc")


def sections_of(page: str) -> dict[str, str]:
    """Return the text below each heading."""
    found: dict[str, str] = {}
    heading, is_code = "", False
    for line in page.splitlines(keepends=True):
        is_code ^= line.startswith("```")
        if not is_code and (title := re.match(r"#+ (.+)", line)):
            heading = title[1]
        found[heading] = found.get(heading, "") + line
    return found


SECTIONS = sections_of(PAGE)


def blocks_of(heading: str) -> dict[str, str]:
    """Return the blocks of a section by language."""
    return dict(re.findall(r"^```(\w+)\n(.*?)^```$", SECTIONS[heading], re.M | re.S))


@dataclass(frozen=True, slots=True)
class Sent:
    """A received request."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class RecordedApi:
    """Answers each request with the recorded answer of its operation, and notes it.

    Attributes:
        document: The OpenAPI document.
    """

    document: dict[str, Any]
    sent: list[Sent] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        """Note a request, and return the recorded answer; 404 if no operation has its path."""
        self.sent.append(
            Sent(
                request.method,
                request.url.path,
                request.query_params.multi_items(),
                dict(request.headers),
                await request.body(),
            )
        )
        for path, methods in self.document["paths"].items():
            operation = methods.get(request.method.lower())
            if operation and re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)), request.url.path):
                recorded = RECORDED.get(operation["operationId"], "")
                status = next(int(status) for status in operation["responses"] if status.startswith("2"))
                text = recorded if isinstance(recorded, str) else json.dumps(recorded)
                media_type = "application/json" if recorded != text else "text/plain"
                return Response(text, status, media_type=media_type)
        return Response("no operation has this path", 404)


@pytest.fixture(scope="module")
def recorded(client: httpx.Client) -> RecordedApi:
    return RecordedApi(client.get("/openapi.json").json())


@pytest.fixture(scope="module")
def url(recorded: RecordedApi) -> Iterator[str]:
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    with serve(Starlette(routes=[Route("/{path:path}", recorded.answer, methods=methods)])) as url:
        yield url


def heading_of(recorded: RecordedApi, name: str) -> str:
    return str(find_operation(recorded.document, name)[2]["summary"])


def check_request(recorded: RecordedApi, name: str, sent: Sent) -> None:
    """Raise unless a request is the example: it may have more query parameters and headers, such as a page size."""
    path, method, operation = find_operation(recorded.document, name)
    places = {parameter["name"]: parameter["in"] for parameter in operation.get("parameters", ())}
    values = REQUESTS[name].get("parameters", {})
    query = [
        (key, str(part))
        for key, value in values.items()
        if places[key] == "query"
        for part in (value if isinstance(value, list) else [value])
    ]
    assert (sent.method, sent.path) == (method.upper(), path.format(**values))
    assert [entry for entry in query if entry not in sent.query] == []
    if "body" in REQUESTS[name]:
        assert json.loads(sent.body) == REQUESTS[name]["body"]
        assert sent.headers["content-type"] in operation["requestBody"]["content"]
    if name == "receiveHook":
        key = decode_key(HOOK_KEY)
        assert key is not None
        assert verify_signature(key, sent.headers, sent.body, int(time.time()))


@pytest.fixture(scope="module")
def variables(url: str) -> Iterator[dict[str, Any]]:
    """Variables that the page's first Python program sets."""
    found: dict[str, Any] = {}
    exec(blocks_of("HTTP API")["python"].replace(SHOWN_URL, url), found)
    yield found
    found["client"].close()


def test_every_endpoint_has_a_section_with_three_tabs(recorded: RecordedApi) -> None:
    anchors = anchors_of(PAGE)
    for name in REQUESTS:
        path, method, operation = find_operation(recorded.document, name)
        heading = operation["summary"]
        assert f"| `{method.upper()} {path}` | [{heading}](#{slug_of(heading)}) |" in PAGE
        assert slug_of(heading) in anchors
        assert f"`{method.upper()} {path}` " in SECTIONS[heading]
        assert set(LANGUAGES) <= set(blocks_of(heading)), heading
        assert re.search(
            r"```console\n(?:(?!```).*\n)*```\n\n```python\n(?:(?!```).*\n)*```\n\n```ts\n", SECTIONS[heading]
        )


@pytest.mark.parametrize("name", RECORDED)
def test_shown_answer_is_the_recorded_one(recorded: RecordedApi, name: str) -> None:
    """An ellipsis stands for any text."""
    blocks = blocks_of(heading_of(recorded, name))
    shown = blocks.get("json") or blocks["text"]
    answer = RECORDED[name]
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)

    # `…,` and `,…` also stand for nothing.
    parts = [re.escape(re.sub(r"\s", "", part).strip(",")) for part in shown.split("…")]
    assert re.fullmatch(".*".join(parts), re.sub(r"\s", "", text), re.S), text


@pytest.mark.parametrize("name", REQUESTS)
def test_curl_of_page_sends_the_example(recorded: RecordedApi, url: str, name: str) -> None:
    text = blocks_of(heading_of(recorded, name))["console"]
    if missing := [word for word in ("curl", "openssl", "od") if word in text and shutil.which(word) is None]:
        pytest.skip(f"not on this machine: {missing}")
    recorded.sent.clear()

    script = re.sub(r"^\$ ", "", text, flags=re.M).replace("localhost:8080", url)
    environment = clean_environment() | {"NO_PROXY": "*", "HOOK_KEY": HOOK_KEY}
    subprocess.run(["sh", "-ec", script], env=environment, check=True, capture_output=True, timeout=60)

    [sent] = recorded.sent
    check_request(recorded, name, sent)
    key = REQUESTS[name].get("parameters", {}).get("idempotency-key")
    assert sent.headers.get("idempotency-key") == key


@pytest.mark.parametrize("name", REQUESTS)
def test_python_of_page_sends_the_example(
    recorded: RecordedApi, variables: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_KEY", HOOK_KEY)
    recorded.sent.clear()

    exec(blocks_of(heading_of(recorded, name))["python"], {**variables})

    [sent] = recorded.sent
    check_request(recorded, name, sent)
    if key := REQUESTS[name].get("parameters", {}).get("idempotency-key"):
        assert sent.headers["idempotency-key"] == key


@pytest.mark.tools
def test_typescript_of_page_sends_the_examples(recorded: RecordedApi, url: str, tmp_path: pathlib.Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not on this machine")
    install_client(tmp_path)
    programs = [blocks_of(heading_of(recorded, name))["ts"] for name in REQUESTS]
    start = blocks_of("HTTP API")["ts"].replace(SHOWN_URL, url)
    imports = [line for text in programs for line in text.splitlines() if line.startswith("import ")]
    bodies = [re.sub(r"^import .*\n", "", text, flags=re.M) for text in programs]
    (tmp_path / "page.mts").write_text("\n".join([*imports, start, *(f"{{\n{body}}}" for body in bodies)]))
    (tmp_path / "node_modules" / "@types").symlink_to(CLIENT / "node_modules" / "@types")
    recorded.sent.clear()

    environment = clean_environment() | {"NO_PROXY": "*", "HOOK_KEY": HOOK_KEY, "PATH": os.environ["PATH"]}
    commands = (["node", "node_modules/.bin/tsc", *TSC, "page.mts"], ["node", "page.mjs"])
    for command in commands:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr

    assert len(recorded.sent) == len(REQUESTS)
    for name, sent in zip(REQUESTS, recorded.sent, strict=True):
        check_request(recorded, name, sent)

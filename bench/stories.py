"""`python -m bench.stories`: number of operator functions that three scenarios call, and of the files that define them.

`agentmemory dev` runs in this process, with a profiler on every thread. A scenario counts the operator's functions that
are called during it: a search after warm-up; a new manifest until the API serves its agent, and one second more;
changed dimensions until the alias has moved. Lambdas and comprehensions do not count.
"""

import argparse
import asyncio
import functools
import json
import os
import signal
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import agentmemory_operator
from agentmemory_operator.entrypoints.cli.composition import DevOptions
from agentmemory_operator.main.development import run_dev
from agentmemory_operator.settings import Settings
from bench.tables import render

Json = dict[str, Any]

ROOT = f"{Path(agentmemory_operator.__file__).parent}{os.sep}"
API_VERSION = "agentmemory.dev/v1alpha1"
SLUG, MEMORIES, LIMIT_S = "stories", 41, 60.0
BEFORE, AFTER = 256, 128
HEAD = ("story", "functions", "files")


class CalledFunctions:
    """Functions that are called during each scenario."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()
        self.stories: dict[str, list[str]] = {}

    def record_call(self, frame: FrameType, event: str, _: object) -> None:
        """Profile function: record each called function."""
        if event == "call":
            self._codes.add(frame.f_code)

    def run_scenario(self, story: str, operation: Callable[[], object]) -> None:
        """Run a scenario and record the functions that it called."""
        self._codes.clear()
        operation()
        called = {code for code in self._codes.copy() if code.co_filename.startswith(ROOT) and code.co_name[0] != "<"}
        self.stories[story] = sorted(f"{code.co_filename.removeprefix(ROOT)}: {code.co_qualname}" for code in called)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stories", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the functions too")
    parser.add_argument("--port", type=int, default=18_480)
    options = parser.parse_args()
    passed = CalledFunctions()
    threading.setprofile(passed.record_call)
    with tempfile.TemporaryDirectory(prefix="agentmemory-bench-") as name:
        manifests = Path(name, "manifests")
        manifests.mkdir()
        runner = threading.Thread(target=run_all, args=(passed, manifests, f"http://127.0.0.1:{options.port}"))
        runner.start()
        sys.setprofile(passed.record_call)
        dev_options = DevOptions(manifests=manifests, data=Path(name, "data"), port=options.port)
        asyncio.run(run_dev(Settings.from_env({}), dev_options))
        sys.setprofile(None)
        runner.join()
    for story, functions in passed.stories.items() if options.list else ():
        print(f"{story}:", *functions, sep="\n  ")
    rows = [
        (story, str(len(functions)), str(len({line.partition(":")[0] for line in functions})))
        for story, functions in passed.stories.items()
    ]
    print(render(HEAD, rows))


def run_all(passed: CalledFunctions, manifests: Path, url: str) -> None:
    """Run the scenarios, then end the process."""
    sys.setprofile(None)
    ask = functools.partial(call, url)
    try:
        wait_for(lambda: ask("/healthz"))
        apply(manifests, "QdrantConnection", "main", {"url": "http://qdrant:6333"})
        time.sleep(1)
        passed.run_scenario("new object to Ready", functools.partial(run_object, ask, manifests))
        texts = [{"user_id": "ada", "content": f"Number {n} is {n * n} squared."} for n in range(MEMORIES)]
        ask(f"/v1/agents/{SLUG}/memories/batch", {"memories": texts})
        search = functools.partial(ask, f"/v1/agents/{SLUG}/search", {"user_id": "ada", "query": "squares"})
        for _ in range(3):
            search()
        passed.run_scenario("one search", functools.partial(run_search, search))
        passed.run_scenario("rebuild to alias move", functools.partial(run_rebuild, ask, manifests))
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def run_object(kubectl: Callable[..., Json], manifests: Path) -> None:
    """Write an agent's manifest. Wait until the API serves it, and one second more."""
    apply_agent(manifests, BEFORE)
    wait_for(lambda: kubectl(f"/v1/agents/{SLUG}"))
    time.sleep(1)


def run_search(search: Callable[[], Json]) -> None:
    """Search, and let the process complete its work after the response."""
    search()
    time.sleep(0.1)


def run_rebuild(kubectl: Callable[..., Json], manifests: Path) -> None:
    """Change the dimensions. Wait until the API serves from the new collection."""
    apply_agent(manifests, AFTER)
    wait_for(lambda: kubectl(f"/v1/agents/{SLUG}")["embedding"]["dimensions"] == AFTER)


def apply_agent(manifests: Path, dimensions: int) -> None:
    """Write the agent's manifest, with embeddings of `dimensions` numbers."""
    embedding = {"provider": "wordllama", "dimensions": dimensions}
    spec = {"connectionRef": {"name": "main"}, "preset": "cortex", "changePolicy": "Apply", "embedding": embedding}
    apply(manifests, "AgentMemory", SLUG, spec)


def apply(manifests: Path, kind: str, name: str, spec: Json) -> None:
    """Write a manifest atomically."""
    path = manifests / f"{kind}.json"
    document = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": "bench"}, "spec": spec}
    path.with_suffix(".new").write_text(json.dumps(document), encoding="utf-8")
    path.with_suffix(".new").replace(path.with_suffix(".yaml"))


def call(url: str, path: str, body: Json | None = None) -> Json:
    """Send a request to the API and return the parsed response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        found: Json = json.load(answer)
    return found


def wait_for(is_done: Callable[[], object]) -> None:
    """Poll until the condition is true. An OSError counts as false.

    Raises:
        TimeoutError: If it is not true within 60 s.
    """
    until_s = time.monotonic() + LIMIT_S
    while True:
        try:
            if is_done():
                return
        except OSError:
            pass
        if time.monotonic() > until_s:
            raise TimeoutError("the story does not end")
        time.sleep(0.05)


if __name__ == "__main__":
    main()

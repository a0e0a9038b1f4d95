"""`python -m bench.stories`: how many of the operator's functions three stories pass, and in how many files they lie.

`agentmemory dev` runs in this process, with an eye on every thread. A story's functions are those of the operator that
are called in its time: of a search once warm, from a manifest until the API serves its agent and a second more, and
from other dimensions in the manifest until the alias has moved. Lambdas and comprehensions do not count.
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


class Passed:
    """The functions that are called while a story is told."""

    def __init__(self) -> None:
        self._seen: set[CodeType] = set()
        self.stories: dict[str, list[str]] = {}

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """What the interpreter calls for each call."""
        if event == "call":
            self._seen.add(frame.f_code)

    def tell(self, story: str, work: Callable[[], object]) -> None:
        """Do something, and keep what it called."""
        self._seen.clear()
        work()
        seen = {code for code in self._seen.copy() if code.co_filename.startswith(ROOT) and code.co_name[0] != "<"}
        self.stories[story] = sorted(f"{code.co_filename.removeprefix(ROOT)}: {code.co_qualname}" for code in seen)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.stories", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the functions too")
    parser.add_argument("--port", type=int, default=18_480)
    options = parser.parse_args()
    passed = Passed()
    threading.setprofile(passed.note)
    with tempfile.TemporaryDirectory(prefix="agentmemory-bench-") as name:
        manifests = Path(name, "manifests")
        manifests.mkdir()
        teller = threading.Thread(target=tell_all, args=(passed, manifests, f"http://127.0.0.1:{options.port}"))
        teller.start()
        sys.setprofile(passed.note)
        asked = DevOptions(manifests=manifests, data=Path(name, "data"), port=options.port)
        asyncio.run(run_dev(Settings.from_env({}), asked))
        sys.setprofile(None)
        teller.join()
    for story, functions in passed.stories.items() if options.list else ():
        print(f"{story}:", *functions, sep="\n  ")
    rows = [
        (story, str(len(functions)), str(len({line.partition(":")[0] for line in functions})))
        for story, functions in passed.stories.items()
    ]
    print(render(HEAD, rows))


def tell_all(passed: Passed, manifests: Path, url: str) -> None:
    """Tell the stories, then end the process's work."""
    sys.setprofile(None)
    ask = functools.partial(call, url)
    try:
        wait_for(lambda: ask("/healthz"))
        apply(manifests, "QdrantConnection", "main", {"url": "http://qdrant:6333"})
        time.sleep(1)
        passed.tell("new object to Ready", functools.partial(tell_object, ask, manifests))
        texts = [{"user_id": "ada", "content": f"Number {n} is {n * n} squared."} for n in range(MEMORIES)]
        ask(f"/v1/agents/{SLUG}/memories/batch", {"memories": texts})
        search = functools.partial(ask, f"/v1/agents/{SLUG}/search", {"user_id": "ada", "query": "squares"})
        for _ in range(3):
            search()
        passed.tell("one search", functools.partial(tell_search, search))
        passed.tell("rebuild to alias move", functools.partial(tell_rebuild, ask, manifests))
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def tell_object(ask: Callable[..., Json], manifests: Path) -> None:
    """Write an agent's manifest, and wait until the API serves it and a second more."""
    apply_agent(manifests, BEFORE)
    wait_for(lambda: ask(f"/v1/agents/{SLUG}"))
    time.sleep(1)


def tell_search(search: Callable[[], Json]) -> None:
    """Search, and let the process end what it does once the answer is out."""
    search()
    time.sleep(0.1)


def tell_rebuild(ask: Callable[..., Json], manifests: Path) -> None:
    """Ask for other dimensions, and wait until searches come from the collection that has them."""
    apply_agent(manifests, AFTER)
    wait_for(lambda: ask(f"/v1/agents/{SLUG}")["embedding"]["dimensions"] == AFTER)


def apply_agent(manifests: Path, dimensions: int) -> None:
    """Write the agent's manifest."""
    embedding = {"provider": "wordllama", "dimensions": dimensions}
    spec = {"connectionRef": {"name": "main"}, "preset": "cortex", "changePolicy": "Apply", "embedding": embedding}
    apply(manifests, "AgentMemory", SLUG, spec)


def apply(manifests: Path, kind: str, name: str, spec: Json) -> None:
    """Write a manifest in one step."""
    path = manifests / f"{kind}.json"
    document = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": "bench"}, "spec": spec}
    path.with_suffix(".new").write_text(json.dumps(document), encoding="utf-8")
    path.with_suffix(".new").replace(path.with_suffix(".yaml"))


def call(url: str, path: str, body: Json | None = None) -> Json:
    """Ask the API."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        found: Json = json.load(answer)
    return found


def wait_for(is_there: Callable[[], object]) -> None:
    """Ask until something is there."""
    until_s = time.monotonic() + LIMIT_S
    while True:
        try:
            if is_there():
                return
        except OSError:
            pass
        if time.monotonic() > until_s:
            raise TimeoutError("the story does not end")
        time.sleep(0.05)


if __name__ == "__main__":
    main()

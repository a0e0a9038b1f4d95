"""What is measured: a Qdrant server and the dev stack in front of it, each a process, in a temporary folder."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agentmemory_operator.domain.effective import Ranking, effective_settings
from agentmemory_operator.domain.manifests import parse_agent_memory
from bench.clients import Client, Refused
from bench.datasets import DIMENSIONS

Json = dict[str, Any]

NAMESPACE = "bench"
START_S, READY_S, INDEXED_S = 60, 30, 900
API_VERSION = "agentmemory.dev/v1alpha1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Running servers.

    Attributes:
        engine: what answers as Qdrant, in words.
    """

    manifests: Path
    api_url: str
    qdrant_url: str
    engine: str

    def declare(self, slug: str, weights: Json | None = None) -> None:
        """Write an agent's manifest, in one step, so that half of it is never read."""
        path = self.manifests / f"{slug}.yaml"
        path.with_suffix(".new").write_text(yaml.safe_dump(agent_manifest(slug, weights)), encoding="utf-8")
        path.with_suffix(".new").replace(path)

    def wait_ready(self, slug: str) -> None:
        """Wait until the API knows the agent and its collection."""
        with Client(self.api_url) as api:
            _wait(lambda: _answers(api, f"/v1/agents/{slug}"), f"agent {slug} is not ready", limit_s=READY_S)

    def wait_indexed(self, alias: str) -> int:
        """Wait until the engine has nothing left to build, three looks in a row; return the indexed vectors."""
        with Client(self.qdrant_url) as qdrant:
            _wait(lambda: _is_settled(qdrant, alias), f"collection {alias} is not green", limit_s=INDEXED_S)
            return int(qdrant.call("GET", f"/collections/{alias}")["result"]["indexed_vectors_count"])


def agent_manifest(slug: str, weights: Json | None = None) -> Json:
    spec: Json = {
        "connectionRef": {"name": "main"},
        "preset": "cortex",
        "embedding": {"provider": "none", "dimensions": DIMENSIONS},
    }
    if weights:
        spec["scoring"] = {"weights": weights}
    return _object("AgentMemory", slug, spec)


def ranking_of(slug: str) -> Ranking:
    """Return the ranking of a declared agent, by the product's own rules."""
    return effective_settings(parse_agent_memory(agent_manifest(slug))).ranking


@contextlib.contextmanager
def running(folder: Path, slugs: list[str], qdrant_url: str | None) -> Iterator[Stack]:
    """Run the stack while the context is open.

    Args:
        qdrant_url: a server to use; None starts the dev Qdrant.
    """
    manifests = folder / "manifests"
    manifests.mkdir(parents=True)
    connection = _object("QdrantConnection", "main", {"url": qdrant_url or "http://127.0.0.1:6333"})
    (manifests / "connection.yaml").write_text(yaml.safe_dump(connection), encoding="utf-8")
    for slug in slugs:
        (manifests / f"{slug}.yaml").write_text(yaml.safe_dump(agent_manifest(slug)), encoding="utf-8")
    with contextlib.ExitStack() as stack:
        url = qdrant_url or stack.enter_context(
            _process(folder, "devserver", ["--data", str(folder / "qdrant"), "--port", "0"], says="Qdrant ")
        )
        options = ["--manifests", str(manifests), "--data", str(folder / "unused"), "--port", "0", "--qdrant", url]
        api_url = stack.enter_context(_process(folder, "dev", options, says="API "))
        engine = f"Qdrant {version_of(url)}" + ("" if qdrant_url else " (dev server)")
        yield Stack(manifests=manifests, api_url=api_url, qdrant_url=url, engine=engine)


def version_of(qdrant_url: str) -> str:
    with Client(qdrant_url) as qdrant:
        return str(qdrant.call("GET", "/")["version"])


def remove_collections(qdrant_url: str, aliases: list[str]) -> None:
    """Delete what the run made on a server that outlives it."""
    with Client(qdrant_url) as qdrant:
        for row in qdrant.call("GET", "/aliases")["result"]["aliases"]:
            if row["alias_name"] in aliases:
                qdrant.call("DELETE", f"/collections/{row['collection_name']}")


@contextlib.contextmanager
def _process(folder: Path, verb: str, options: list[str], *, says: str) -> Iterator[str]:
    """Run a verb of the product; yield the URL on the line that starts with `says`."""
    log = folder / f"{verb}.log"
    command = [sys.executable, "-m", "agentmemory_operator", verb, *options]
    with log.open("w", encoding="utf-8") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield _said(process, log, says)
        finally:
            process.terminate()


def _said(process: subprocess.Popen[bytes], log: Path, says: str) -> str:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        for line in log.read_text(encoding="utf-8").splitlines():
            if line.startswith(says):
                return line.removeprefix(says)
        time.sleep(0.05)
    raise RuntimeError(f"{log.stem} did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")


def _object(kind: str, name: str, spec: Json) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }


def _wait(is_done: Callable[[], bool], complaint: str, *, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not is_done():
        if time.monotonic() > until:
            raise RuntimeError(f"{complaint} after {limit_s:.0f} s")
        time.sleep(0.1)


def _answers(api: Client, path: str) -> bool:
    try:
        api.call("GET", path)
    except Refused:
        return False
    return True


def _is_settled(qdrant: Client, alias: str) -> bool:
    for _ in range(3):
        if qdrant.call("GET", f"/collections/{alias}")["result"]["status"] != "green":
            return False
        time.sleep(0.5)
    return True

"""The system under test: a Qdrant server and the dev stack in front of it, each a process, in a temporary folder."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import yaml

from agentmemory_operator.spec.effective.settings import Ranking, effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from bench.clients import Client, Refused
from bench.datasets import DIMENSIONS

Json = dict[str, Any]

NAMESPACE = "bench"
START_S, READY_S, INDEXED_S = 60, 30, 900
DEFAULT_VERSION = "1.18.3"
API_VERSION = "agentmemory.dev/v1alpha1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Running servers.

    Attributes:
        api_pid: Process of the API and the operator.
        engine: Name and version of the Qdrant server, for the output.
    """

    manifests: Path
    api_url: str
    api_pid: int
    qdrant_url: str
    engine: str

    def declare(self, slug: str, weights: Json | None = None) -> None:
        """Write the manifest of an agent with preset cortex. If `weights` is None, the preset's apply."""
        self.apply(agent_manifest(slug, weights))

    def apply(self, manifest: Json) -> None:
        """Write a manifest atomically."""
        path = self.manifests / f"{manifest['metadata']['name']}.yaml"
        path.with_suffix(".new").write_text(yaml.safe_dump(manifest), encoding="utf-8")
        path.with_suffix(".new").replace(path)

    def applied(self, slug: str) -> Json:
        """Read the manifest that is applied for an agent."""
        manifest: Json = yaml.safe_load((self.manifests / f"{slug}.yaml").read_text(encoding="utf-8"))
        return manifest

    def rebuild_status(self, slug: str) -> Json:
        """Return the rebuild in an agent's status. Empty before there is one."""
        file = self.manifests / ".status" / f"{NAMESPACE}.{slug}.agentmemory.json"
        if not file.is_file():
            return {}
        rebuild: Json = json.loads(file.read_text(encoding="utf-8"))["status"].get("rebuild") or {}
        return rebuild

    def wait_ready(self, slug: str) -> None:
        """Wait until the API serves the agent from its collection. Raises RuntimeError after `READY_S`."""
        with Client(self.api_url) as api:
            _wait(lambda: _is_served(api, f"/v1/agents/{slug}"), f"agent {slug} is not ready", limit_s=READY_S)

    def wait_until(self, is_done: Callable[[], bool], complaint: str) -> None:
        """Wait until a condition is true.

        Raises:
            RuntimeError: If it is not true within `READY_S`.
        """
        _wait(is_done, complaint, limit_s=READY_S)

    def wait_indexed(self, alias: str) -> int:
        """Wait until the collection is green in three consecutive checks. Return the number of indexed vectors.

        Raises:
            RuntimeError: If it is not green within `INDEXED_S`.
        """
        with Client(self.qdrant_url) as qdrant:
            _wait(lambda: _is_settled(qdrant, alias), f"collection {alias} is not green", limit_s=INDEXED_S)
            return int(qdrant.call("GET", f"/collections/{alias}")["result"]["indexed_vectors_count"])


def agent_manifest(slug: str, weights: Json | None = None, *, spec: Json | None = None) -> Json:
    """Return the manifest of an agent with preset cortex. Fields of `spec` override or extend it."""
    embedding = {"provider": "none", "dimensions": DIMENSIONS}
    whole = {"connectionRef": {"name": "main"}, "preset": "cortex", "embedding": embedding} | (spec or {})
    if weights:
        whole["scoring"] = {"weights": weights}
    return _object("AgentMemory", slug, whole)


def standard_manifest(slug: str) -> Json:
    """Return the manifest of an agent with preset standard."""
    return agent_manifest(slug, spec={"preset": "standard"})


def ranking_of(slug: str) -> Ranking:
    """Return the ranking of an agent with preset cortex, by the product's own rules."""
    return effective_settings(parse_agent_memory(agent_manifest(slug))).ranking


@contextlib.contextmanager
def running(
    folder: Path,
    slugs: list[str],
    qdrant_url: str | None,
    *,
    spec: Json | None = None,
    version: str = DEFAULT_VERSION,
    profile: Path | None = None,
) -> Iterator[Stack]:
    """Run the stack while the context is open.

    Args:
        qdrant_url: Server to use. None starts the dev Qdrant.
        spec: Fields that override or extend the spec of every agent.
        version: Version of Qdrant that the dev server reports.
        profile: File to write a profile of the API's process to, at its end; see `bench.sampling`.
    """
    manifests = folder / "manifests"
    manifests.mkdir(parents=True)
    connection = _object("QdrantConnection", "main", {"url": qdrant_url or "http://127.0.0.1:6333"})
    (manifests / "connection.yaml").write_text(yaml.safe_dump(connection), encoding="utf-8")
    for slug in slugs:
        (manifests / f"{slug}.yaml").write_text(yaml.safe_dump(agent_manifest(slug, spec=spec)), encoding="utf-8")
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(serving_qdrant(folder, qdrant_url, version))
        options = ["--manifests", str(manifests), "--data", str(folder / "unused"), "--port", "0", "--qdrant", url]
        api_url, api_pid = stack.enter_context(_process(folder, "dev", options, prefix="API ", profile=profile))
        engine = engine_of(url, is_dev=qdrant_url is None)
        yield Stack(manifests=manifests, api_url=api_url, api_pid=api_pid, qdrant_url=url, engine=engine)


@contextlib.contextmanager
def serving_qdrant(folder: Path, qdrant_url: str | None, version: str = DEFAULT_VERSION) -> Iterator[str]:
    """Yield the URL of the given server, else of a dev Qdrant that runs while the context is open."""
    if qdrant_url:
        yield qdrant_url
        return
    with KillableQdrant(folder, version) as qdrant:
        yield qdrant.url


def engine_of(qdrant_url: str, *, is_dev: bool) -> str:
    """Return the name and version of the Qdrant server, for the output."""
    with Client(qdrant_url) as qdrant:
        version = qdrant.call("GET", "/")["version"]
    return f"Qdrant {version}" + (" (dev server)" if is_dev else "")


def remove_collections(qdrant_url: str, aliases: list[str]) -> None:
    """Delete the collections to which these aliases point, from a server that outlives the run."""
    with Client(qdrant_url) as qdrant:
        for row in qdrant.call("GET", "/aliases")["result"]["aliases"]:
            if row["alias_name"] in aliases:
                qdrant.call("DELETE", f"/collections/{row['collection_name']}")


class KillableQdrant:
    """The dev Qdrant in a process that can be killed and restarted, on the same port and data."""

    def __init__(self, folder: Path, version: str = DEFAULT_VERSION) -> None:
        self._folder, self._version = folder, version
        self._running = contextlib.ExitStack()
        self._port = 0
        self.url = ""
        self.pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._running.close()

    def start(self) -> None:
        """Start the server and wait until it listens."""
        options = ["--data", str(self._folder / "qdrant"), "--port", str(self._port)]
        options += ["--qdrant-version", self._version]
        process = _process(self._folder, "devserver", options, prefix="Qdrant ", ends_with=signal.SIGKILL)
        self.url, self.pid = self._running.enter_context(process)
        self._port = urlsplit(self.url).port or 0

    def kill(self) -> None:
        """Kill the server with SIGKILL; `start` restarts it."""
        self._running.close()


@contextlib.contextmanager
def _process(
    folder: Path,
    verb: str,
    options: list[str],
    *,
    prefix: str,
    ends_with: signal.Signals = signal.SIGTERM,
    profile: Path | None = None,
) -> Iterator[tuple[str, int]]:
    """Run a command of the product. Yield the URL from the log line that starts with `prefix`, and the process id."""
    log = folder / f"{verb}.log"
    module = ["agentmemory_operator"] if profile is None else ["bench.sampling", str(profile)]
    command = [sys.executable, "-m", *module, verb, *options]
    with log.open("w", encoding="utf-8") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield _wait_for_line(process, log, prefix), process.pid
        finally:
            process.send_signal(ends_with)


def _wait_for_line(process: subprocess.Popen[bytes], log: Path, prefix: str) -> str:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        for line in log.read_text(encoding="utf-8").splitlines():
            if line.startswith(prefix):
                return line.removeprefix(prefix)
        time.sleep(0.05)
    raise RuntimeError(f"{log.stem} did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")


def _object(kind: str, name: str, spec: Json) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }


def _wait(is_done: Callable[[], bool], message: str, *, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not is_done():
        if time.monotonic() > until:
            raise RuntimeError(f"{message} after {limit_s:.0f} s")
        time.sleep(0.1)


def _is_served(api: Client, path: str) -> bool:
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

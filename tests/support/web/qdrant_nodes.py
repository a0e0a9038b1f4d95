"""Development servers as processes: single, or the nodes of a cluster. QDRANT_URLS lists the nodes of a real one."""

import contextlib
import os
import pathlib
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest

from tests.support.fault_injection import plant
from tests.support.forked import start_process
from tests.support.patience import Patience
from tests.support.programs import ROOT

STEADY, LAGGING, REAL = "steady", "lagging", "real"
# Kinds of clusters that a suite runs on.
SIMULATED = (STEADY, pytest.param(LAGGING, marks=pytest.mark.faults))
CLUSTERS = (REAL,) if "QDRANT_URLS" in os.environ else SIMULATED
# Delays in seconds. They exceed the requests after a write, so that they have an effect. Replicas become active late.
_LATE = {"lag": "0.3", "slow-replicas": "0.3"}
SETTLED_WITHIN_S = 30.0
READY_S = 20


class DevServer:
    """A development server in its own process."""

    def __init__(self, data_dir: pathlib.Path, *options: str) -> None:
        self.data_dir = data_dir
        command = (sys.executable, "-m", "qdrant_devserver", "--data", str(data_dir), *options)
        reading, output = os.pipe()
        with open(os.devnull, "rb") as nothing:
            environment = os.environ | {"PYTHONPATH": str(ROOT / "devserver")}
            self.process = start_process(command, (nothing.fileno(), output, output), env=environment)
        os.close(output)
        self._output = os.fdopen(reading, "rb")
        self.urls = self._wait()
        self.url = self.urls[0]
        self.http = httpx.Client(base_url=self.url, timeout=30, headers={"accept-encoding": "identity"})

    def call(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        answer = self.http.request(method, path, json=body) if body is not None else self.http.request(method, path)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text[:300]}"
        return answer.json().get("result")

    def wait_for_status(self, collection: str, status: str, *, within_s: float = 60) -> None:
        patience = Patience(within_s)
        while (seen := self.call("GET", f"/collections/{collection}")["status"]) != status:
            assert not patience.is_over, f"{collection} is {seen}, not {status}, after {within_s} s"
            time.sleep(0.05)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        self.http.close()
        self.process.send_signal(how)
        self.process.wait(timeout=30)
        self._output.close()

    def _wait(self) -> list[str]:
        line = self._output.readline().decode()
        found = re.search(r"Qdrant (http://.+)", line)
        if not found:
            rest = self._output.read().decode()
            self._output.close()
            self.process.wait(timeout=READY_S)
            raise RuntimeError(line + rest)
        return found[1].split()


StartServer = Callable[..., DevServer]
"""Starts a server with options on a data folder."""


class Peers(DevServer):
    """A simulated cluster of three nodes.

    Args:
        how: STEADY, or LAGGING: nodes see changes of other nodes late, and replicas become active late.
    """

    def __init__(self, data_dir: pathlib.Path, how: str, activation_s: float) -> None:
        super().__init__(data_dir, "--peers", "3", "--activation-seconds", str(activation_s))
        self._faults = _LATE if how == LAGGING else {}
        self.set_faults()

    def set_faults(self, **more: str) -> None:
        """Add faults to those of the cluster's kind. Raises: As `plant`."""
        plant(self.data_dir, engine=self._faults, **more)


@contextlib.contextmanager
def open_nodes(folder: pathlib.Path, how: str, activation_s: float) -> Iterator[tuple[str, ...]]:
    """Start the nodes, unless they are real; yield their URLs."""
    if how == REAL:
        yield tuple(os.environ["QDRANT_URLS"].split(","))
        return
    running = Peers(folder, how, activation_s)
    try:
        # The first node has the replica of collections with a single shard, so another node is listed first.
        yield tuple([*running.urls[1:], running.urls[0]] if how == LAGGING else running.urls)
    finally:
        running.stop()


def wait_for_value(what: Callable[[], Any], wanted: Any) -> None:
    """Wait until `what` returns `wanted`; fail after 30 s."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while (seen := what()) != wanted:
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)


def wait_for_active_replicas(urls: Sequence[str], name: str) -> None:
    """Wait until every node reports the collection as the first node does, with all replicas active."""

    def seen() -> list[Any]:
        told = []
        for url in urls:
            about = httpx.get(f"{url}/collections/{name}")
            shards = httpx.get(f"{url}/collections/{name}/cluster")
            if {about.status_code, shards.status_code} != {200}:
                return []
            result = shards.json()["result"]
            states = {each["state"] for each in (*result["local_shards"], *result["remote_shards"])}
            config = about.json()["result"]["config"], sorted(about.json()["result"]["payload_schema"])
            told.append([states == {"Active"}, config])
        return [each == [True, told[0][1]] for each in told]

    wait_for_value(seen, [True] * len(urls))

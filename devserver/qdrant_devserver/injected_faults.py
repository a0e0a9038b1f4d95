"""Faults that a test requests: the development server reads them from `faults.json` in its data folder.

    {"create": "disk-full", "recover": "never-ends", "update": "disk-full", "away": "2,3", "upsert": "keeps-vectors",
     "index": "1.5", "process": "process_open_mmaps=900,system_max_mmaps=1000", "lag": "0.6", "slow-replicas": "0.5"}

- `create`, `recover`: a step of a snapshot. The fault takes effect when most of the work is done and nothing is
  published.
- `update`: takes effect before each change of points; searches continue.
- `away`: numbers of peers that cannot be reached.
- `upsert`: an upsert without vectors keeps the old ones. With `keeps-vectors` it does so during a snapshot, like Qdrant
  1.18; with `keeps-vectors-always` at any time.
- `index`: seconds to build a payload index, with or without a waiting client.
- `process`: figures of the process in `/metrics`. With `refused` the response is 403, as to a key without
  access to them.
- `lag`: seconds after which the other peers of a cluster see a change.
- `slow-replicas`: seconds until all replicas of a new collection are active, shard by shard. Before that, a peer has no
  files of its shards.

The file is read at each step, so a fault starts and ends with the file. Each fault that took effect leaves an empty
file `faults.met.STEP` next to it. No real Qdrant has this feature.
"""

import asyncio
import errno
import os
import pathlib
import signal

import orjson
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

FAULTS, FAULT_MARKER = "faults.json", "faults.met"


class InjectedFaults:
    """Faults that the file in the data folder requests."""

    def __init__(self, data_dir: pathlib.Path) -> None:
        self._path = data_dir / FAULTS

    async def apply(self, step: str) -> None:
        """Fail as requested for this step: `disk-full`, `never-ends`, `kill` (SIGKILL), or a delay in seconds.

        Raises:
            OSError: If the requested fault is `disk-full`.
        """
        requested = self._read_requested().get(step)
        if requested is not None:
            self.record_effect(step)
        match requested:
            case "disk-full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "never-ends":
                await asyncio.Event().wait()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case str(seconds):
                await asyncio.sleep(float(seconds))

    async def delay(self, step: str) -> None:
        """Wait for the seconds that are requested for this step, if any."""
        if seconds := self._seconds(step):
            await asyncio.sleep(seconds)

    def record_effect(self, step: str) -> None:
        """Record that a fault took effect, for the test that requested it."""
        self._path.with_name(f"{FAULT_MARKER}.{step}").touch()

    def unreachable_peers(self) -> frozenset[int]:
        """Return the numbers of the peers that the fault `away` names."""
        return frozenset(int(number) for number in self._read_requested().get("away", "").split(",") if number)

    def lag_s(self) -> float:
        """Return the seconds after which the other peers see a change; 0 without the fault."""
        return self._seconds("lag")

    def slow_replicas_s(self) -> float:
        """Return the seconds until the last replicas of a new collection are active; 0 without the fault."""
        return self._seconds("slow-replicas")

    def retains_vectors(self, *, amid_snapshot: bool) -> bool:
        """Return whether an upsert keeps the old vectors that the new point lacks."""
        requested = self._read_requested().get("upsert")
        return requested == "keeps-vectors-always" or (requested == "keeps-vectors" and amid_snapshot)

    def process_figures(self) -> dict[str, int] | None:
        """Return the requested figures of the process by metric, empty without any; None to refuse the metrics."""
        requested = self._read_requested().get("process", "")
        if requested:
            self.record_effect("process")
        if requested == "refused":
            return None
        return {
            name: int(value) for name, _, value in (figure.partition("=") for figure in requested.split(",") if figure)
        }

    def _seconds(self, step: str) -> float:
        seconds = float(self._read_requested().get(step, 0))
        if seconds:
            self.record_effect(step)
        return seconds

    def _read_requested(self) -> dict[str, str]:
        try:
            requested: dict[str, str] = orjson.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        return requested


class UnreachablePeer:
    """Middleware that responds 503 on the port of an unreachable peer. A real peer would not respond."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request if its peer is reachable."""
        if scope["type"] == "http" and scope["app"].state.peer in scope["app"].state.server.faults.unreachable_peers():
            scope["app"].state.server.faults.record_effect("away")
            await PlainTextResponse("this peer is said to be away", 503)(scope, receive, send)
            return
        await self._app(scope, receive, send)

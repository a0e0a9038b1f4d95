"""Faults that a test asks for: the development server reads them from `faults.json` in its data folder.

    {"create": "disk-full", "recover": "never-ends", "update": "disk-full", "away": "2,3", "upsert": "keeps-vectors",
     "index": "1.5", "process": "process_open_mmaps=900,system_max_mmaps=1000", "lag": "0.6", "slow-replicas": "0.5"}

`create` and `recover` are the steps of snapshots, met when most of their work is done and nothing is published yet;
`update` is each change of points, met before any of it is done, while searches go on; `away` are the numbers of peers
that cannot be reached. `upsert` is what Qdrant 1.18 does while a snapshot of the collection is being made: a point that
is written again keeps the vectors that the new one leaves out. `keeps-vectors` is so during snapshots, as there, and
`keeps-vectors-always` as if one were being made all the time. `index` is how many seconds it takes to make a payload
index, whether anybody waits for it or not. `process` is what `/metrics` says of the process in the place of what it
uses and may, or `refused`, as to a key for the collections alone. `lag` is how many seconds later than the peer that
took a change the others of a cluster know it, `slow-replicas` until when the replicas of a new collection are active,
shard by shard: before that a peer has no files of theirs. The file is read at each step, so a fault begins and ends
with it; of each that was met there is then an empty file `faults.met.STEP` beside it. Only the development server has
this.
"""

import asyncio
import errno
import os
import pathlib
import signal

import orjson
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

FAULTS, MET = "faults.json", "faults.met"


class InjectedFaults:
    """What goes wrong on demand."""

    def __init__(self, data_dir: pathlib.Path) -> None:
        self._path = data_dir / FAULTS

    async def meet(self, step: str) -> None:
        """Fail as asked for at this step: `disk-full`, `never-ends`, `kill` (the process, as kill -9), or wait.

        Raises:
            OSError: the disk is said to be full.
        """
        asked = self._asked().get(step)
        if asked is not None:
            self.met(step)
        match asked:
            case "disk-full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "never-ends":
                await asyncio.Event().wait()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case str(seconds):
                await asyncio.sleep(float(seconds))

    async def delay(self, step: str) -> None:
        """Wait as many seconds as are asked for at this step."""
        if seconds := self._seconds(step):
            await asyncio.sleep(seconds)

    def met(self, step: str) -> None:
        """Note that a fault was met, for the test that planted it."""
        self._path.with_name(f"{MET}.{step}").touch()

    def away(self) -> frozenset[int]:
        """The peers that cannot be reached."""
        return frozenset(int(number) for number in self._asked().get("away", "").split(",") if number)

    def lag_s(self) -> float:
        """How many seconds later than the one that took a change the other peers know it."""
        return self._seconds("lag")

    def slow_replicas_s(self) -> float:
        """After how many seconds the last replicas of a new collection are active."""
        return self._seconds("slow-replicas")

    def keeps_vectors(self, *, amid_snapshot: bool) -> bool:
        """Whether a point that is written again keeps the vectors that the new one leaves out."""
        asked = self._asked().get("upsert")
        return asked == "keeps-vectors-always" or (asked == "keeps-vectors" and amid_snapshot)

    def process(self) -> dict[str, int] | None:
        """What the process is said to use and may, by the name of the metric; None where nobody may know."""
        asked = self._asked().get("process", "")
        if asked:
            self.met("process")
        if asked == "refused":
            return None
        return {name: int(value) for name, _, value in (one.partition("=") for one in asked.split(",") if one)}

    def _seconds(self, step: str) -> float:
        seconds = float(self._asked().get(step, 0))
        if seconds:
            self.met(step)
        return seconds

    def _asked(self) -> dict[str, str]:
        try:
            asked: dict[str, str] = orjson.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        return asked


class Absence:
    """Answers 503 on the port of a peer that is said to be away; of a real one nothing would answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its peer is there."""
        if scope["type"] == "http" and scope["app"].state.peer in scope["app"].state.server.faults.away():
            scope["app"].state.server.faults.met("away")
            await PlainTextResponse("this peer is said to be away", 503)(scope, receive, send)
            return
        await self._app(scope, receive, send)

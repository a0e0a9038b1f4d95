"""Faults that a test asks for: the development server reads them from `faults.json` in its data folder.

    {"create": "disk-full", "recover": "never-ends", "update": "disk-full", "away": "2,3"}

`create` and `recover` are the steps of snapshots, met when most of their work is done and nothing is published yet;
`update` is each change of points, met before any of it is done, while searches go on; `away` are the numbers of peers
that cannot be reached. The file is read at each step, so a fault begins and ends with it. Only the development server
has this.
"""

import asyncio
import errno
import os
import pathlib
import signal

import orjson
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

FAULTS = "faults.json"


class InjectedFaults:
    """What goes wrong on demand."""

    def __init__(self, data_dir: pathlib.Path) -> None:
        self._path = data_dir / FAULTS

    async def meet(self, step: str) -> None:
        """Fail as asked for at this step: `disk-full`, `never-ends` or `kill` (of the whole process, as kill -9).

        Raises:
            OSError: the disk is said to be full.
        """
        match self._asked().get(step):
            case "disk-full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "never-ends":
                await asyncio.Event().wait()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)

    def away(self) -> frozenset[int]:
        """Return the peers that cannot be reached."""
        return frozenset(int(number) for number in self._asked().get("away", "").split(",") if number)

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
            await PlainTextResponse("this peer is said to be away", 503)(scope, receive, send)
            return
        await self._app(scope, receive, send)

"""Faults that a test asks for: the development server reads them from `faults.json` in its data folder.

    {"create": "disk-full", "recover": "never-ends"}

`create` and `recover` are the steps of snapshots, met when most of their work is done and nothing is published yet. The
file is read at each step, so a fault begins and ends with it. Only the development server has this.
"""

import asyncio
import errno
import os
import pathlib
import signal

import orjson

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

    def _asked(self) -> dict[str, str]:
        try:
            asked: dict[str, str] = orjson.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        return asked

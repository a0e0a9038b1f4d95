"""Registry of the development stacks that run on this machine: one file per stack, from which commands find it.

A stack holds a lock on its file while it runs. The operating system releases the lock however the process ends, `kill
-9` included. So an unlocked file is stale, even if another process has the same process id by now.
"""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

FOLDER = "running"
# Limit of a read, more than a stack writes, in case another program has written the file.
_MAX_BYTES = 16_384
# Pattern of the URL of a stack's API.
_OWN_URL = re.compile(r"http://127\.0\.0\.1:\d{1,5}")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStack:
    """A development stack that is running.

    Attributes:
        api: URL of the retrieval API, on loopback.
        qdrant: URL of the dev Qdrant, which replaces the servers of all connections.
        manifests, data: Folders of the stack.
        pid: Process id, for display.
    """

    api: str
    qdrant: str
    manifests: Path
    data: Path
    pid: int

    def __str__(self) -> str:
        """Describe the stack for users."""
        return f"the development stack on {self.manifests} ({self.api}, process {self.pid})"


class RunningStacks:
    """Development stacks of this user on this machine.

    Args:
        folder: The user's data folder. With None, `find` returns no stacks and `register` raises OSError.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder / FOLDER if folder else None

    @contextlib.contextmanager
    def register(self, stack: RunningStack) -> Iterator[None]:
        """Register a stack while the context is open.

        Raises:
            OSError: If the file of the stack cannot be written, or `folder` is None.
        """
        if self._folder is None:
            raise FileNotFoundError("neither HOME nor XDG_DATA_HOME is set")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / f"{uuid4().hex}.json"
        draft = path.with_suffix(".new")
        descriptor = os.open(draft, _MAKE, 0o600)
        try:
            # Lock before the rename, because another process would remove an unlocked file as stale.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, _rendered(stack))
            draft.rename(path)
            yield
        finally:
            for written_path in (path, draft):
                with contextlib.suppress(OSError):
                    written_path.unlink(missing_ok=True)
            os.close(descriptor)

    def find(self) -> tuple[RunningStack, ...]:
        """Return the running stacks, sorted by the URL of their API; remove stale files, skip unreadable ones."""
        try:
            paths = sorted(self._folder.glob("*.json")) if self._folder else []
        except OSError:
            return ()
        stacks = [stack for path in paths if (stack := _read(path)) is not None]
        return tuple(sorted(stacks, key=lambda stack: stack.api))


def _read(path: Path) -> RunningStack | None:
    """Return the stack of a locked file, or None; remove an unlocked file."""
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            return None
        if not _is_held(descriptor):
            path.unlink(missing_ok=True)
            return None
        return _parsed(os.read(descriptor, _MAX_BYTES))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _is_held(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _rendered(stack: RunningStack) -> bytes:
    document = {"api": stack.api, "qdrant": stack.qdrant, "pid": stack.pid}
    document |= {"manifests": str(stack.manifests), "data": str(stack.data)}
    return json.dumps(document).encode()


def _parsed(content: bytes) -> RunningStack | None:
    """Parse the content of a file; None if a field is missing or malformed, or `api` is not a loopback URL."""
    try:
        document = json.loads(content)
        api, qdrant = str(document["api"]), str(document["qdrant"])
        folders = {name: Path(str(document[name])) for name in ("manifests", "data")}
        pid = int(document["pid"])
    except (ValueError, LookupError, TypeError, ArithmeticError):
        return None
    return RunningStack(api=api, qdrant=qdrant, pid=pid, **folders) if _OWN_URL.fullmatch(api) else None

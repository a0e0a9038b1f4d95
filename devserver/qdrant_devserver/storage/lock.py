"""Lock that allows one server per data folder."""

import fcntl
import os
import pathlib

LOCK = "lock"


class DataFolderBusy(OSError):
    """Another server uses the data folder."""


class DataFolderLock:
    """Lock on a data folder. The operating system releases it when the process ends, even if it is killed."""

    def __init__(self, data_dir: pathlib.Path) -> None:
        """Acquire the lock.

        Raises:
            DataFolderBusy: If another process holds it.
        """
        data_dir.mkdir(parents=True, exist_ok=True)
        path = data_dir / LOCK
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = path.read_text(encoding="utf-8").strip() or "unknown"
            os.close(self._descriptor)
            message = (
                f"{data_dir} is in use by another development server (process {holder}): stop it or use another --data"
            )
            raise DataFolderBusy(message) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, str(os.getpid()).encode())

    def release(self) -> None:
        """Release the lock. The lock file stays."""
        os.close(self._descriptor)

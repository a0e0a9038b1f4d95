"""Files that commands write: whole, or as they were."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a draft beside a file, which takes its place once it is written and synced."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as draft:
        try:
            yield draft
            draft.flush()
            os.fsync(draft.fileno())
            os.replace(draft.name, path)
        except BaseException:
            os.unlink(draft.name)
            raise

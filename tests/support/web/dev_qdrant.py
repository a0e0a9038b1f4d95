"""A development Qdrant server in this process."""

import contextlib
import pathlib
from collections.abc import Iterator

from qdrant_devserver.server import create_app
from tests.support.web.http_server import ServerFiles, serve


@contextlib.contextmanager
def dev_qdrant(
    data: pathlib.Path, *, port: int = 0, api_key: str | None = None, tls: ServerFiles | None = None
) -> Iterator[str]:
    """Serve a development Qdrant server; yield its URL."""
    data.mkdir(parents=True, exist_ok=True)
    with serve(create_app(data, api_key=api_key), port=port, tls=tls) as url:
        yield url

"""The key of user tokens in development: a file beside the memories, made when the first is asked for."""

from pathlib import Path

from agentmemory_operator.adapters.folder.kept_files import alone_in, write_whole
from agentmemory_operator.adapters.signing_key import key_from, new_key
from agentmemory_operator.errors import TransientError
from agentmemory_operator.ports.access import SigningKey

FILE = "user-token-key"
# Longer than any key; whatever else lies there is not read whole.
_MOST_BYTES = 1024


class FileSigningKey:
    """Implements ports.SigningKeys.

    Args:
        data: the folder.
    """

    def __init__(self, data: Path) -> None:
        self._data = data

    async def read(self) -> SigningKey:
        """The key, made where there is none."""
        path = self._data / FILE
        try:
            self._data.mkdir(parents=True, exist_ok=True)
            with alone_in(self._data):
                if not path.exists():
                    write_whole(self._data, FILE, new_key())
                with path.open("rb") as file:
                    key = key_from(file.read(_MOST_BYTES).decode("ascii", errors="replace"))
        except OSError as exc:
            raise TransientError(f"{path}, which signs user tokens, cannot be kept: {exc.strerror or exc}") from exc
        if key is None:
            raise TransientError(f"{path} holds no key for user tokens: delete it, and a new one is made")
        return key

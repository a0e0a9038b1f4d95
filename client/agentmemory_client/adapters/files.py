"""Text files of a user, for adapters whose framework keeps memories in files.

A file is an item: its namespace is ("memories", user, folder, *directories), its key is the file's name. The metadata
contains the whole text; only the first characters are embedded. Every change is conditional on the version that was
read, so of concurrent changes of one file exactly one takes effect. A directory exists while it contains a file.

An operation is a write that a framework may repeat, for example after a crash. The file keeps the last operations in
the same item, so the write and the record of it cannot get separated.
"""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypedDict, Unpack
from uuid import uuid4

from agentmemory_client.handles import Agent
from agentmemory_client.item_calls import ItemOptions
from agentmemory_client.problems import ApiError
from agentmemory_client.texts import is_visible
from agentmemory_client.values import Memory

METADATA = "file"
DEFAULT_FOLDER = "files"
USER_ROOT = "memories"
MAX_EMBEDDED_CHARS = 8_192
# A namespace has at most 16 parts, and the path of a folder has three.
MAX_DIRECTORIES, MAX_NAME_CHARS = 13, 256
MAX_OPERATIONS = 16
FILES_PER_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOperation:
    """A write that was recorded in its file.

    Attributes:
        fingerprint: Hash of what was requested.
        version: Version of the file that the write made.
        existed: True if the file existed before.
    """

    id: str
    fingerprint: str
    version: str
    existed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A file as it was read.

    Attributes:
        version: Identifies one write of the file; never used again, also after a deletion.
        etag: Condition for the next change; empty for a file of `UserFiles.files`, which cannot be changed.
        operations: The last operations, oldest first.
        metadata: Texts that the last write recorded; None if it recorded none.
    """

    path: str
    text: str
    version: str
    etag: str
    operations: tuple[FileOperation, ...] = ()
    metadata: Mapping[str, str] | None = None


class WriteOptions(TypedDict, total=False):
    """Options of a write.

    Attributes:
        version: Version of the file after the write; a new one without it.
        operations: Operations to record in the file.
        metadata: Texts to record with the write.
    """

    version: str | None
    operations: Sequence[FileOperation]
    metadata: Mapping[str, str] | None


class FileChanged(Exception):
    """A file is not as it was read: another writer created, changed or deleted it. Nothing was written."""


class InvalidPath(ValueError):
    """A path that cannot name a file. Nothing was sent."""


def split_path(path: str) -> tuple[str, ...]:
    """Split a relative path, for example `notes/a.md`, into its names. '' has none.

    Raises:
        InvalidPath: If it has an empty name, `.` or `..`, or is too long or too deep.
    """
    # The API stores names in this form.
    names = tuple(unicodedata.normalize("NFC", path).split("/")) if path else ()
    if any(name in ("", ".", "..") for name in names):
        raise InvalidPath(f"{path!r} has an empty name, or `.` or `..`")
    if any(len(name) > MAX_NAME_CHARS for name in names):
        raise InvalidPath(f"a name in the path has more than {MAX_NAME_CHARS} characters")
    if len(names) > MAX_DIRECTORIES + 1:
        raise InvalidPath(f"{path!r} has more than {MAX_DIRECTORIES} directories")
    return names


class UserFiles:
    """Files of one user. Every call may raise ApiError, ApiUnreachable, or InvalidPath.

    Args:
        agent: Agent of a blocking `Client`. It needs an embedder: with provider `none` the API refuses files.
        user_id: Owner of the files; a user or a shared scope.
        folder: Name of the set of files. Adapters with the same folder share the files.
    """

    def __init__(self, agent: Agent, user_id: str, *, folder: str = DEFAULT_FOLDER) -> None:
        self._agent = agent
        self._user = agent.user(user_id)
        self._root = (USER_ROOT, user_id, folder)

    def read(self, path: str) -> TextFile | None:
        """Read a file; None if there is none at this path."""
        *directories, name = split_path(path) or ("",)
        if not name:
            return None
        try:
            memory = self._agent.get_item((*self._root, *directories), name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return self._file(memory)

    def create(self, path: str, text: str, **options: Unpack[WriteOptions]) -> str:
        """Create a file; return its version.

        Raises:
            FileChanged: If the file exists.
        """
        return self._put(path, text, {"if_none_match": True}, **options)

    def replace(self, file: TextFile, text: str, **options: Unpack[WriteOptions]) -> str:
        """Replace the text of a file that was read; return the new version.

        Raises:
            FileChanged: If it changed since.
        """
        options["operations"] = [*file.operations, *options.get("operations", ())]
        return self._put(file.path, text, {"if_match": file.etag}, **options)

    def delete(self, file: TextFile) -> None:
        """Delete a file that was read.

        Raises:
            FileChanged: If it changed since.
        """
        *directories, name = split_path(file.path)
        with _conditions_checked(404, 412):
            self._agent.delete_item((*self._root, *directories), name, if_match=file.etag)

    def has_directory(self, path: str) -> bool:
        """Return whether there is a file below a path. The root always exists."""
        return not path or bool(self._namespaces(path))

    def paths(self, directory: str = "") -> list[str]:
        """List the paths of all files below a directory, sorted, without reading the files."""
        found = list[str]()
        for namespace in self._namespaces(directory):
            parts = namespace[len(self._root) :]
            found += ["/".join((*parts, key)) for key in self._agent.keys(namespace)]
        return sorted(found)

    def files(self, directory: str = "") -> Iterator[TextFile]:
        """Read all files below a directory, page by page, in no order. Read a file alone before you change it."""
        names = split_path(directory)
        if len(names) > MAX_DIRECTORIES:
            return
        namespace = (*self._root, *names)
        for memory in self._user.memories(namespace=namespace, include_scopes=[], limit=FILES_PER_PAGE):
            if memory.key is not None:
                yield self._file(memory)

    def _namespaces(self, directory: str) -> list[tuple[str, ...]]:
        names = split_path(directory)
        if len(names) > MAX_DIRECTORIES:
            return []
        return [size.namespace for size in self._agent.namespaces((*self._root, *names))]

    def _file(self, memory: Memory) -> TextFile:
        stored = memory.metadata.get(METADATA)
        # An item that another client stored has only its content.
        fields: dict[str, Any] = stored if isinstance(stored, dict) else {}
        etag = memory.etag or ""
        return TextFile(
            path="/".join((*memory.namespace[len(self._root) :], memory.key or "")),
            text=str(fields.get("text", memory.content or "")),
            version=str(fields.get("version", etag)),
            etag=etag,
            operations=tuple(FileOperation(**operation) for operation in fields.get("operations", ())),
            metadata=fields.get("metadata"),
        )

    def _put(self, path: str, text: str, condition: ItemOptions, **options: Unpack[WriteOptions]) -> str:
        *directories, name = split_path(path)
        version = options.get("version") or uuid4().hex
        fields: dict[str, Any] = {"text": text, "version": version}
        if operations := options.get("operations", ())[-MAX_OPERATIONS:]:
            fields["operations"] = [asdict(operation) for operation in operations]
        if metadata := options.get("metadata"):
            fields["metadata"] = dict(metadata)
        start = text[:MAX_EMBEDDED_CHARS]
        content = start if is_visible(start) else path
        item: ItemOptions = {**condition, "key": name, "metadata": {METADATA: fields}}
        with _conditions_checked(412):
            self._agent.put_item((*self._root, *directories), content, **item)
        return version


@contextmanager
def _conditions_checked(*statuses: int) -> Iterator[None]:
    """Raise FileChanged if the condition of a change does not hold, which the statuses mean."""
    try:
        yield
    except ApiError as error:
        if error.status in statuses:
            raise FileChanged(error.detail) from error
        raise

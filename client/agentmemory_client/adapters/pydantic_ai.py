"""Store of Pydantic AI's `Memory` capability: `AgentMemoryStore`. It needs the extra `pydantic-ai`.

Memory files are items of one user, see `adapters/files.py`. An operation has a receipt, an item that expires after a
week:

1. Store the receipt with the path, as not done.
2. Write the file if it has the expected version. The file records the operation in the same write.
3. Store the receipt as done.

Invariant: an operation takes effect at most once. After a crash between the steps the file shows whether it did; a
deletion took effect if the file is gone.

Errors of calls (ApiError, ApiUnreachable) are raised. The capability continues without memories if it cannot inject
them, unless `injection_errors="raise"`; the run ends if a tool of the model fails.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import islice
from typing import Any
from uuid import uuid4

from pydantic_ai_harness.memory import (
    MemoryConflictError,
    MemoryFile,
    MemoryMutation,
    MemoryOperation,
    MemoryOperationConflictError,
    MemorySearchMatch,
    MemorySearchResult,
)

from agentmemory_client.adapters.files import (
    DEFAULT_FOLDER,
    FileChanged,
    FileOperation,
    TextFile,
    UserFiles,
    WriteOptions,
    split_path,
)
from agentmemory_client.handles import Agent
from agentmemory_client.problems import ApiError

RECEIPTS = "operations"
RECEIPT_LIFETIME = timedelta(days=7)
ELLIPSIS = "..."
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")


class AgentMemoryStore:
    """Files of one user; implements `MemoryStore`, `MetadataMemoryStore` and `SearchableMemoryStore`.

    Args:
        agent: Agent of a blocking `Client`.
        user_id: Owner of the files. For a user of each run, pass `store_resolver` to `Memory`.
        folder: Name of the set of files; another set of the same user has another name.
    """

    def __init__(self, agent: Agent, user_id: str, *, folder: str = DEFAULT_FOLDER) -> None:
        self._agent = agent
        self._files = UserFiles(agent, user_id, folder=folder)
        self._receipts = ("memories", user_id, f"{folder}-{RECEIPTS}")

    async def read(self, path: str, *, max_chars: int) -> MemoryFile | None:
        """Read the first `max_chars` characters of a file; None if there is none at this path."""
        _check_path(path)
        if max_chars <= 0:
            raise ValueError("max_chars must be positive")
        file = await asyncio.to_thread(self._files.read, path)
        if file is None:
            return None
        return MemoryFile(
            content=file.text[:max_chars],
            version=file.version,
            operation_id=_last_operation_id(file),
            truncated=len(file.text) > max_chars,
            metadata=file.metadata,
        )

    async def get_operation(self, operation: MemoryOperation) -> MemoryMutation | None:
        """Return the result of an earlier operation with this id; None if there is none.

        Raises:
            MemoryOperationConflictError: If it had another fingerprint.
        """
        return await asyncio.to_thread(self._find_operation, operation)

    async def write(
        self, path: str, content: str, *, expected_version: str | None, operation: MemoryOperation | None = None
    ) -> MemoryMutation:
        """Create a file, or replace it if it has the expected version. Of concurrent writers exactly one succeeds.

        Raises:
            MemoryConflictError: If the file has another version. Nothing was written.
            MemoryOperationConflictError: If the operation has the id of an earlier one and another fingerprint.
        """
        return await self.write_with_metadata(
            path, content, expected_version=expected_version, metadata=None, operation=operation
        )

    async def write_with_metadata(
        self,
        path: str,
        content: str,
        *,
        expected_version: str | None,
        metadata: Mapping[str, str] | None,
        operation: MemoryOperation | None = None,
    ) -> MemoryMutation:
        """As `write`, and record metadata with the write, which the next write of the file replaces."""
        _check_path(path)
        options: WriteOptions = {"metadata": metadata}
        return await asyncio.to_thread(self._write, path, content, expected_version, operation, options)

    async def delete(
        self, path: str, *, expected_version: str | None, operation: MemoryOperation | None = None
    ) -> MemoryMutation:
        """Delete a file if it has the expected version. Raises: As `write`."""
        _check_path(path)
        return await asyncio.to_thread(self._delete, path, expected_version, operation)

    async def list_paths(self, prefix: str = "", *, limit: int) -> list[str]:
        """List the paths that begin with a prefix, sorted."""
        _check_prefix(prefix)
        if limit <= 0:
            raise ValueError("limit must be positive")
        return await asyncio.to_thread(lambda: list(islice(self._paths(prefix), limit)))

    async def search(
        self, prefix: str, query: str, *, limit: int, max_files: int, max_chars: int, max_file_chars: int
    ) -> MemorySearchResult:
        """Search the words of a query in files whose path begins with a prefix; most occurrences first.

        Args:
            limit: Maximum number of matches.
            max_files: Maximum number of files to search, in the order of their paths.
            max_chars: Maximum number of characters of all paths and snippets together.
            max_file_chars: Characters of each file that are searched.
        """
        _check_prefix(prefix)
        if not query.split() or min(limit, max_files, max_chars, max_file_chars) <= 0:
            return MemorySearchResult(matches=[], scanned=0, truncated=False)
        directory = prefix.rpartition("/")[0]
        files = await asyncio.to_thread(lambda: list(self._files.files(directory)))
        matching = sorted((file for file in files if file.path.startswith(prefix)), key=lambda file: file.path)
        scanned = matching[:max_files]
        texts = [(file.path, file.text[:max_file_chars]) for file in scanned]
        matches, is_complete = _find_words(texts, query, prefix, limit=limit, max_chars=max_chars)
        is_cut = len(matching) > max_files or any(len(file.text) > max_file_chars for file in scanned)
        return MemorySearchResult(matches=matches, scanned=len(scanned), truncated=is_cut or not is_complete)

    def _paths(self, prefix: str) -> Iterable[str]:
        return (path for path in self._files.paths(prefix.rpartition("/")[0]) if path.startswith(prefix))

    def _write(
        self,
        path: str,
        content: str,
        expected_version: str | None,
        operation: MemoryOperation | None,
        options: WriteOptions,
    ) -> MemoryMutation:
        if operation and (earlier := self._find_operation(operation)):
            return earlier
        file = self._files.read(path)
        # Of concurrent attempts, another one may have written the file since.
        if operation and (recorded := _find_recorded(file, operation)):
            return recorded
        _check_version(path, file, expected_version)
        mutation = MemoryMutation(version=uuid4().hex, replayed=False, existed=file is not None)
        with self._recorded(path, operation, mutation), _conflicts(path):
            options |= {"version": mutation.version, "operations": _file_operations(operation, mutation)}
            if file is None:
                self._files.create(path, content, **options)
            else:
                self._files.replace(file, content, **options)
        return mutation

    def _delete(self, path: str, expected_version: str | None, operation: MemoryOperation | None) -> MemoryMutation:
        if operation and (earlier := self._find_operation(operation)):
            return earlier
        file = self._files.read(path)
        _check_version(path, file, expected_version)
        mutation = MemoryMutation(version=None, replayed=False, existed=file is not None)
        with self._recorded(path, operation, mutation), _conflicts(path):
            if file is not None:
                self._files.delete(file)
        return mutation

    def _find_operation(self, operation: MemoryOperation) -> MemoryMutation | None:
        """Return the result of an operation that has a receipt; None if it did not take effect."""
        try:
            receipt = self._agent.get_item(self._receipts, _receipt_key(operation)).metadata["receipt"]
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        _check_fingerprint(operation, receipt["fingerprint"])
        if not receipt["is_done"]:
            # An earlier attempt ended in the middle, or met a conflict: the file shows whether it took effect.
            file = self._files.read(receipt["path"])
            if file is not None or receipt["version"] is not None:
                return _find_recorded(file, operation)
        return MemoryMutation(version=receipt["version"], replayed=True, existed=receipt["existed"])

    @contextmanager
    def _recorded(self, path: str, operation: MemoryOperation | None, mutation: MemoryMutation) -> Iterator[None]:
        """Store the receipt of an operation before it, with `is_done` False, and again after it."""
        if operation is None:
            yield
            return
        receipt = asdict(mutation) | {"path": path, "fingerprint": operation.fingerprint}
        self._store_receipt(operation, receipt | {"is_done": False})
        yield
        self._store_receipt(operation, receipt | {"is_done": True})

    def _store_receipt(self, operation: MemoryOperation, receipt: Mapping[str, Any]) -> None:
        self._agent.put_item(
            self._receipts,
            receipt["path"],
            key=_receipt_key(operation),
            metadata={"receipt": receipt},
            importance=0.0,
            expires_at=datetime.now(UTC) + RECEIPT_LIFETIME,
        )


def _file_operations(operation: MemoryOperation | None, mutation: MemoryMutation) -> list[FileOperation]:
    if operation is None or mutation.version is None:
        return []
    return [FileOperation(**asdict(operation), version=mutation.version, existed=mutation.existed)]


def _find_recorded(file: TextFile | None, operation: MemoryOperation) -> MemoryMutation | None:
    """Return the result of a write that its file records; None if the file is not known to have it."""
    for recorded in file.operations if file else ():
        if recorded.id == operation.id:
            _check_fingerprint(operation, recorded.fingerprint)
            return MemoryMutation(version=recorded.version, replayed=True, existed=recorded.existed)
    return None


def _check_fingerprint(operation: MemoryOperation, fingerprint: str) -> None:
    if fingerprint != operation.fingerprint:
        raise MemoryOperationConflictError(f"operation id {operation.id!r} was used with other arguments")


def _check_version(path: str, file: TextFile | None, expected: str | None) -> None:
    if (file.version if file else None) != expected:
        raise MemoryConflictError(f"{path!r} has another version than expected")


@contextmanager
def _conflicts(path: str) -> Iterator[None]:
    """Convert FileChanged to Pydantic AI's error."""
    try:
        yield
    except FileChanged as error:
        raise MemoryConflictError(f"{path!r} was changed by another writer") from error


def _receipt_key(operation: MemoryOperation) -> str:
    """Return the key of a receipt. An id may be longer than a key, or have characters that a key cannot have."""
    return sha256(operation.id.encode()).hexdigest()


def _last_operation_id(file: TextFile) -> str | None:
    """Return the id of the operation that wrote the present version; None if none did."""
    return next((recorded.id for recorded in file.operations if recorded.version == file.version), None)


def _check_path(path: str) -> None:
    """Raise ValueError unless a path has only the characters that Pydantic AI's own stores allow."""
    if not all(_NAME.fullmatch(name) and ".." not in name for name in path.split("/")):
        raise ValueError(f"invalid memory path: {path!r}")
    split_path(path)


def _check_prefix(prefix: str) -> None:
    if prefix:
        _check_path(prefix.removesuffix("/"))


def _find_words(
    texts: Sequence[tuple[str, str]], query: str, prefix: str, *, limit: int, max_chars: int
) -> tuple[list[MemorySearchMatch], bool]:
    """Return the files with words of a query, best first, and whether those are all.

    The score of a file counts the words in its text, and twice those in its path below the prefix.
    """
    words = query.lower().split()
    scored = list[tuple[int, str, str]]()
    for path, text in texts:
        name = path.removeprefix(prefix).lower()
        if score := sum(text.lower().count(word) + 2 * name.count(word) for word in words):
            scored.append((-score, path, text))
    matches, remaining = list[MemorySearchMatch](), max_chars
    for negative_score, path, text in sorted(scored)[:limit]:
        remaining -= len(path.removeprefix(prefix))
        if remaining <= 0:
            break
        snippet = _snippet(text, words, remaining)
        remaining -= len(snippet)
        matches.append(MemorySearchMatch(path=path, snippet=snippet, score=float(-negative_score)))
    return matches, len(matches) == len(scored)


def _snippet(text: str, words: Sequence[str], size: int) -> str:
    """Return at most `size` characters around the first word, with an ellipsis on each side that was cut."""
    # Not in `text.lower()`, where places differ: the lower case of some characters has two, for example of `İ`.
    matches = (re.search(re.escape(word), text, re.IGNORECASE) for word in words)
    first = min((match.start() for match in matches if match), default=0)
    start = max(0, min(first - size // 3, len(text) - size))
    snippet = text[start : start + size]
    if len(snippet) < 3 * len(ELLIPSIS):
        return snippet
    if start > 0:
        snippet = ELLIPSIS + snippet[len(ELLIPSIS) :]
    return snippet if start + size >= len(text) else snippet[: -len(ELLIPSIS)] + ELLIPSIS

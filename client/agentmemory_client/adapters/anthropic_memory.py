"""Anthropic's memory tool on an agent's memory. It needs the extra `anthropic-memory`.

Claude's files below `/memories` are items of one user, see `adapters/files.py`. Every error is a ToolError: the model
reads its text, and the conversation continues.
"""

import asyncio
import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
from anthropic.types.beta import (
    BetaCacheControlEphemeralParam,
    BetaMemoryTool20250818CreateCommand,
    BetaMemoryTool20250818DeleteCommand,
    BetaMemoryTool20250818InsertCommand,
    BetaMemoryTool20250818RenameCommand,
    BetaMemoryTool20250818StrReplaceCommand,
    BetaMemoryTool20250818ViewCommand,
)

from agentmemory_client.adapters.common import is_outage
from agentmemory_client.adapters.files import (
    DEFAULT_FOLDER,
    FileChanged,
    InvalidPath,
    TextFile,
    UserFiles,
    split_path,
)
from agentmemory_client.handles import Agent
from agentmemory_client.problems import ApiError, ApiUnreachable

ROOT = "/memories"
MAX_LINES = 999_999
LINE_NUMBER_CHARS = 6
MAX_LISTED_LEVELS = 2
UNITS = "BKMG"
SNIPPET_LINES = 2
MAX_LISTED_MATCHES = 20
# An attempt fails only if another writer changed the file, so the writers together make progress.
MAX_ATTEMPTS = 32


class _Commands:
    """The commands of the tool. The texts of results and errors are those of Anthropic's own file system tool."""

    def __init__(self, agent: Agent, user_id: str, folder: str) -> None:
        self._files = UserFiles(agent, user_id, folder=folder)

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        with _errors_for_model():
            path = _relative(command.path)
            if file := self._files.read(path):
                return _numbered(file.text, command)
            files = list(self._files.files(path))
            if path and not files:
                raise ToolError(f"The path {command.path} does not exist. Please provide a valid path.")
            return _listing(path, files)

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        with _errors_for_model():
            path = _relative(command.path)
            if self._files.has_directory(path):
                raise ToolError(f"File {command.path} already exists")
            self._check_directories(path)
            try:
                self._files.create(path, command.file_text)
            except FileChanged as error:
                raise ToolError(f"File {command.path} already exists") from error
        return f"File created successfully at: {command.path}"

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        def replace(text: str) -> str:
            _check_single_match(text, command.old_str, command.path)
            return text.replace(command.old_str, command.new_str)

        before, after = self._edit(command.path, replace)
        first = before[: before.find(command.old_str)].count("\n")
        lines = after.split("\n")
        start, end = max(0, first - SNIPPET_LINES), first + SNIPPET_LINES + 1
        snippet = "\n".join(_number_lines(lines[start:end], start + 1))
        return (
            f"The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{snippet}"
        )

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        def insert(text: str) -> str:
            lines = text.removesuffix("\n").split("\n") if text else []
            if not 0 <= command.insert_line <= len(lines):
                raise ToolError(
                    f"Invalid `insert_line` parameter: {command.insert_line}. It should be within the range"
                    f" [0, {len(lines)}]."
                )
            lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
            return "\n".join(lines).removesuffix("\n") + "\n"

        self._edit(command.path, insert)
        return f"The file {command.path} has been edited."

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        with _errors_for_model():
            path = _relative(command.path)
            if not path:
                raise ToolError(f"Cannot delete the {ROOT} directory itself")
            if not self._delete_file(path) and not self._delete_directory(path):
                raise ToolError(f"The path {command.path} does not exist")
        return f"Successfully deleted {command.path}"

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        with _errors_for_model():
            old, new = _relative(command.old_path), _relative(command.new_path)
            if self._files.has_directory(new) or self._files.read(new):
                raise ToolError(f"The destination {command.new_path} already exists")
            if not old:
                raise ToolError(f"Cannot rename the {ROOT} directory itself")
            if new.startswith(f"{old}/"):
                raise ToolError(f"The path {command.old_path} cannot be moved to {command.new_path}, inside itself")
            self._check_directories(new)
            if file := self._files.read(old):
                self._move(file, new)
                return f"Successfully renamed {command.old_path} to {command.new_path}"
            if not (paths := self._files.paths(old)):
                raise ToolError(f"The path {command.old_path} does not exist")
            # Check all paths before the first file is moved: a new one may be too deep.
            renamed = {path: "/".join(split_path(new + path.removeprefix(old))) for path in paths}
            for path, new_path in renamed.items():
                # None: another writer has deleted it in the meantime.
                if file := self._files.read(path):
                    self._move(file, new_path)
        return f"Successfully renamed {command.old_path} to {command.new_path}"

    def clear(self) -> str:
        with _errors_for_model():
            self._delete_directory("")
        return "All memory cleared"

    def _edit(self, given: str, edit: Callable[[str], str]) -> tuple[str, str]:
        """Change a file; return its text before and after. If another writer changes it first, edit the new text."""
        with _errors_for_model():
            path = _relative(given)
            for _ in range(MAX_ATTEMPTS):
                if (file := self._files.read(path)) is None:
                    if self._files.has_directory(path):
                        raise ToolError(f"The path {given} is not a file.")
                    raise ToolError(f"The path {given} does not exist. Please provide a valid path.")
                try:
                    self._files.replace(file, text := edit(file.text))
                except FileChanged:
                    continue
                return file.text, text
        raise ToolError(f"The file {given} is being changed by others all the time. Nothing was changed; try again.")

    def _delete_file(self, path: str) -> bool:
        """Delete a file in whatever version; return whether there was one."""
        for _ in range(MAX_ATTEMPTS):
            if (file := self._files.read(path)) is None:
                return False
            try:
                self._files.delete(file)
            except FileChanged:
                continue
            return True
        raise ToolError("The file is being changed by others all the time. It was not deleted; try again.")

    def _delete_directory(self, path: str) -> bool:
        # A list: a file that was deleted by another writer in the meantime still counts.
        return bool([self._delete_file(file) for file in self._files.paths(path)])

    def _move(self, file: TextFile, path: str) -> None:
        """Copy a file, then delete it. After a crash in between both exist, and nothing is lost."""
        try:
            self._files.create(path, file.text)
        except FileChanged as error:
            raise ToolError(f"The destination {ROOT}/{path} already exists") from error
        try:
            self._files.delete(file)
        except FileChanged as error:
            raise ToolError(
                f"The file {ROOT}/{file.path} was changed during the renaming. It still exists; {ROOT}/{path} has its"
                " text from before that change."
            ) from error

    def _check_directories(self, path: str) -> None:
        """Refuse a path below a file."""
        names = split_path(path)
        for count in range(1, len(names)):
            if self._files.read(above := "/".join(names[:count])):
                raise ToolError(f"The path {ROOT}/{above} is a file, not a directory.")


class AgentMemoryTool(BetaAbstractMemoryTool):
    """Claude's memory tool for one user, for `client.beta.messages.tool_runner` of a blocking `Anthropic`.

    Args:
        agent: Agent of a blocking `Client`.
        user_id: Owner of the files.
        folder: Name of the set of files; another set of the same user has another name.
        cache_control: As of Anthropic's tools.
    """

    def __init__(
        self,
        agent: Agent,
        user_id: str,
        *,
        folder: str = DEFAULT_FOLDER,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._commands = _Commands(agent, user_id, folder)

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """Show a file with line numbers, or the files of a directory up to two levels deep."""
        return self._commands.view(command)

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """Create a file. Of several writers that create the same file exactly one succeeds."""
        return self._commands.create(command)

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace a text that occurs once in a file."""
        return self._commands.str_replace(command)

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert lines after a line of a file."""
        return self._commands.insert(command)

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Delete a file, or all files of a directory."""
        return self._commands.delete(command)

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Rename a file or directory."""
        return self._commands.rename(command)

    def clear_all_memory(self) -> str:
        """Delete all files of the folder."""
        return self._commands.clear()


class AsyncAgentMemoryTool(BetaAsyncAbstractMemoryTool):
    """Claude's memory tool for one user, for an `AsyncAnthropic`. Arguments: As `AgentMemoryTool`."""

    def __init__(
        self,
        agent: Agent,
        user_id: str,
        *,
        folder: str = DEFAULT_FOLDER,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._commands = _Commands(agent, user_id, folder)

    async def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """Show a file with line numbers, or the files of a directory up to two levels deep."""
        return await asyncio.to_thread(self._commands.view, command)

    async def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """Create a file. Of several writers that create the same file exactly one succeeds."""
        return await asyncio.to_thread(self._commands.create, command)

    async def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace a text that occurs once in a file."""
        return await asyncio.to_thread(self._commands.str_replace, command)

    async def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert lines after a line of a file."""
        return await asyncio.to_thread(self._commands.insert, command)

    async def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Delete a file, or all files of a directory."""
        return await asyncio.to_thread(self._commands.delete, command)

    async def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Rename a file or directory."""
        return await asyncio.to_thread(self._commands.rename, command)

    async def clear_all_memory(self) -> str:
        """Delete all files of the folder."""
        return await asyncio.to_thread(self._commands.clear)


@contextmanager
def _errors_for_model() -> Iterator[None]:
    """Convert errors to ToolError, whose text the model reads."""
    try:
        yield
    except InvalidPath as error:
        raise ToolError(f"Invalid path: {error}") from error
    except UnicodeEncodeError as error:
        raise ToolError(
            "The text is not valid Unicode: it has half of a surrogate pair. Nothing was changed."
        ) from error
    except (ApiError, ApiUnreachable) as error:
        if is_outage(error):
            message = "The memory is unavailable now. View what you tried to change before you try again."
        else:
            message = f"The memory refused the command: {error}"
        raise ToolError(message) from error


def _relative(path: str) -> str:
    """Return a path relative to `/memories`, without `.`, `..` and repeated slashes; '' for `/memories` itself.

    A percent sign has no meaning: `%2e%2e` is an ordinary name.
    """
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        raise ToolError(f"Path must start with {ROOT}, got: {path}")
    plain = posixpath.normpath(path)
    if plain != ROOT and not plain.startswith(f"{ROOT}/"):
        raise ToolError(f"Path {path} would escape {ROOT} directory")
    return "/".join(split_path(plain.removeprefix(ROOT).removeprefix("/")))


def _check_single_match(text: str, wanted: str, path: str) -> None:
    """Refuse a text to replace that does not occur exactly once."""
    if not wanted or wanted not in text:
        raise ToolError(f"No replacement was performed, old_str `{wanted}` did not appear verbatim in {path}.")
    lines, position = list[str](), text.find(wanted)
    while position >= 0 and len(lines) <= MAX_LISTED_MATCHES:
        lines.append(str(text.count("\n", 0, position) + 1))
        position = text.find(wanted, position + 1)
    if text.count(wanted) > 1:
        if len(lines) > MAX_LISTED_MATCHES:
            lines[MAX_LISTED_MATCHES:] = ["..."]
        raise ToolError(
            f"No replacement was performed. Multiple occurrences of old_str `{wanted}` in lines: {', '.join(lines)}."
            " Please ensure it is unique"
        )


def _numbered(text: str, command: BetaMemoryTool20250818ViewCommand) -> str:
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        raise ToolError(f"File {command.path} exceeds maximum line limit of {MAX_LINES:,} lines.")
    first = 1
    if command.view_range and len(command.view_range) == 2:
        first, last = max(1, command.view_range[0]), command.view_range[1]
        lines = lines[first - 1 : last if last >= 0 else None]
    numbered = "\n".join(_number_lines(lines, first))
    return f"Here's the content of {command.path} with line numbers:\n{numbered}"


def _number_lines(lines: Sequence[str], first: int) -> list[str]:
    return [f"{number:>{LINE_NUMBER_CHARS}}\t{line}" for number, line in enumerate(lines, first)]


def _listing(path: str, files: Sequence[TextFile]) -> str:
    """List a directory. The size of a directory is that of all files below it, also of hidden ones."""
    base = f"{ROOT}/{path}".rstrip("/")
    sizes: dict[tuple[str, ...], int] = {(): 0}
    for file in files:
        names = tuple(file.path.removeprefix(path).strip("/").split("/"))
        size = len(file.text.encode())
        for entry in ((), *((*names[:count], "") for count in range(1, len(names))), names):
            sizes[entry] = sizes.get(entry, 0) + size
    lines = [
        f"{_size(size)}\t{'/'.join((base, *entry))}"
        # A directory ends in an empty name, so it comes before its entries.
        for entry, size in sorted(sizes.items())
        if len(tuple(filter(None, entry))) <= MAX_LISTED_LEVELS and not any(name.startswith(".") for name in entry)
    ]
    header = f"Here're the files and directories up to 2 levels deep in {base}, excluding hidden items:"
    return "\n".join((header, *lines))


def _size(size: float) -> str:
    unit = 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f}".removesuffix(".0") + UNITS[unit]

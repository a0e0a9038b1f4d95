"""Choose and create the folders of `agentmemory dev`: the named ones, else folders in the user's data directory.

If only the folder of manifests is named, the data folder is `.agentmemory` in the working directory.
"""

from dataclasses import dataclass
from pathlib import Path

from agentmemory_operator.adapters.folder.atomic_files import ignore_in_git, write_file
from agentmemory_operator.adapters.folder.running_stacks import RunningStack
from agentmemory_operator.controllers.rules.starter_manifests import CONNECTION_FILE, render_connection, render_memory
from agentmemory_operator.entrypoints.cli.composition import DevOptions
from agentmemory_operator.entrypoints.cli.options import DATA
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.settings import Settings
from agentmemory_operator.spec.presets import DEFAULT_PRESET

STACK_FOLDER, MANIFESTS_FOLDER = "dev", "manifests"
FIRST_AGENT = "assistant"


@dataclass(frozen=True, slots=True)
class DevFolders:
    """Folders of a development stack.

    Attributes:
        manifests: Folder of the watched manifests.
        data: Folder of everything that the stack stores.
    """

    manifests: Path
    data: Path


def open_folders(settings: Settings, options: DevOptions) -> DevFolders:
    """Return the folders of a stack; create missing ones, and a first agent in a new manifest folder.

    Raises:
        AgentMemoryError: If a folder cannot be created, or there is no data directory. Name one with --data.
    """
    data = options.data or _default_data(settings, options)
    folders = DevFolders((options.manifests or data / MANIFESTS_FOLDER).absolute(), data.absolute())
    try:
        if not data.exists():
            data.mkdir(parents=True, mode=0o700)
            ignore_in_git(data)
        if not folders.manifests.exists():
            _make_manifests(folders.manifests)
    except OSError as exc:
        raise AgentMemoryError(
            f"{exc.filename or data} cannot be made: {exc.strerror or exc}: name another folder with --data, or set"
            " XDG_DATA_HOME"
        ) from exc
    return folders


def _default_data(settings: Settings, options: DevOptions) -> Path:
    if options.manifests is not None:
        return DATA
    if settings.user_data is None:
        raise AgentMemoryError(
            "neither HOME nor XDG_DATA_HOME is set, so there is no folder for the memories: name one with --data"
        )
    return settings.user_data / STACK_FOLDER


def _make_manifests(folder: Path) -> None:
    # Rename the folder only when it is complete, so that a killed process leaves no folder without an agent.
    draft = folder.with_name(f".{folder.name}.new")
    draft.mkdir(parents=True, exist_ok=True)
    write_file(draft / CONNECTION_FILE, render_connection())
    write_file(draft / f"{FIRST_AGENT}.yaml", render_memory(FIRST_AGENT, DEFAULT_PRESET))
    draft.rename(folder)


def check_free(folders: DevFolders, running: tuple[RunningStack, ...]) -> None:
    """Raise if another running stack uses one of the folders.

    Raises:
        AgentMemoryError: If another stack uses a folder. The message names the stack and the remedy.
    """
    paths = {folders.manifests.resolve(), folders.data.resolve()}
    for stack in running:
        if paths & {stack.manifests.resolve(), stack.data.resolve()}:
            raise AgentMemoryError(
                f"{stack} works on {folders.data} or {folders.manifests}: ask that one, stop it, or name other folders"
                " with --data and --manifests"
            )

"""The folders of `agentmemory dev`: those that are named, else one outside of whatever folder it is started in."""

from dataclasses import dataclass
from pathlib import Path

from agentmemory_operator.adapters.folder.own_files import keep_from_git, write_file
from agentmemory_operator.adapters.folder.running import RunningStack
from agentmemory_operator.controllers.rules.starter_manifests import CONNECTION_FILE, connection_text, memory_text
from agentmemory_operator.entrypoints.cli.composition import DevOptions
from agentmemory_operator.entrypoints.cli.options import DATA
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.settings import Settings
from agentmemory_operator.spec.presets import DEFAULT_PRESET

STACK, MANIFESTS = "dev", "manifests"
FIRST_AGENT = "assistant"


@dataclass(frozen=True, slots=True)
class DevFolders:
    """Where a stack finds what is declared, and keeps what it makes of it."""

    manifests: Path
    data: Path


def open_folders(settings: Settings, options: DevOptions) -> DevFolders:
    """The folders of a stack; those that nobody names are made, the first time with an agent.

    Raises:
        AgentMemoryError: they cannot be; says the way out.
    """
    data = options.data or _usual_data(settings, options)
    folders = DevFolders((options.manifests or data / MANIFESTS).absolute(), data.absolute())
    try:
        if not data.exists():
            data.mkdir(parents=True, mode=0o700)
            keep_from_git(data)
        if not folders.manifests.exists():
            _make_manifests(folders.manifests)
    except OSError as exc:
        raise AgentMemoryError(
            f"{exc.filename or data} cannot be made: {exc.strerror or exc}: name another folder with --data, or set"
            " XDG_DATA_HOME"
        ) from exc
    return folders


def _usual_data(settings: Settings, options: DevOptions) -> Path:
    if options.manifests is not None:
        return DATA
    if settings.place is None:
        raise AgentMemoryError(
            "neither HOME nor XDG_DATA_HOME is set, so there is no folder for the memories: name one with --data"
        )
    return settings.place / STACK


def _make_manifests(folder: Path) -> None:
    # Under its own name only when it is whole: a kill leaves no folder without an agent.
    draft = folder.with_name(f".{folder.name}.new")
    draft.mkdir(parents=True, exist_ok=True)
    write_file(draft / CONNECTION_FILE, connection_text())
    write_file(draft / f"{FIRST_AGENT}.yaml", memory_text(FIRST_AGENT, DEFAULT_PRESET))
    draft.rename(folder)


def check_free(folders: DevFolders, running: tuple[RunningStack, ...]) -> None:
    """Refuse folders that another stack works on.

    Raises:
        AgentMemoryError: says which, and the way out.
    """
    ours = {folders.manifests.resolve(), folders.data.resolve()}
    for stack in running:
        if ours & {stack.manifests.resolve(), stack.data.resolve()}:
            raise AgentMemoryError(
                f"{stack} works on {folders.data} or {folders.manifests}: ask that one, stop it, or name other folders"
                " with --data and --manifests"
            )

"""Define all commands. The module of a command is imported when it runs; `main` composes its dependencies."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from agentmemory_operator import __version__
from agentmemory_operator.entrypoints.cli.completion_table import CompletionCommands
from agentmemory_operator.entrypoints.cli.composition import CommandDependencies
from agentmemory_operator.entrypoints.cli.program import COMPLETE, PROGRAM


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """Entry of a command in `COMMANDS`.

    Attributes:
        panel: Group of the command in `--help`.
        help: Help text. A test compares it with that of the command itself.
        adder: Function that adds the command to a command line, as a dotted name in this package.
        needs: Fields of `CommandDependencies` that the function takes after the command line.
    """

    panel: str
    help: str
    adder: str
    needs: tuple[str, ...] = ()


_SERVERS = "servers.add_servers", ("servers",)
_API = "memories.memory_commands.add_memory_commands", ("api_access", "inspection")
_STORED = "memories.stored_commands.add_stored", ("api_access", "inspection")
_TRANSFER = "memories.transfer_commands.add_transferring", ("api_access", "inspection")
_JOBS = ("open_jobs",)
MIN_HELP_WIDTH = 78
NO_BREAK_HYPHEN = "\u2011"
PRINTERS = "install.prints.add_printers"
_NOT_ONE_OF, _QUOTED = re.compile(r"'(.*)' is not one of (.*)", re.DOTALL), re.compile("'([^']*)'")
COMMANDS = {
    "operator": CommandEntry(
        "Run",
        "Run the operator, in a cluster or with a kubeconfig. Only the replica that holds the lease is active.",
        *_SERVERS,
    ),
    "api": CommandEntry("Run", "Run the retrieval API.", *_SERVERS),
    "dev": CommandEntry(
        "Run", "Run a development stack in one process: Qdrant, operator and API for a folder of manifests.", *_SERVERS
    ),
    "mcp": CommandEntry(
        "Run",
        "Serve the memories of a user to an MCP host on standard input and output, by calling the API.",
        "mcp_command.add_mcp",
        ("api_access", "inspection"),
    ),
    "init": CommandEntry(
        "Run",
        "Write commented manifests of an agent, for a cluster or `dev`; existing files are never overwritten.",
        "install.init.add_init",
    ),
    "devserver": CommandEntry("Run", "Run the development Qdrant server alone.", *_SERVERS),
    "validate": CommandEntry(
        "Look",
        "Validate manifests as strictly as the API server does; exit 1 if something is wrong.",
        "look.validate.add_checks",
    ),
    "plan": CommandEntry(
        "Look",
        "Preview the changes that manifests would make to their collections.",
        "look.plan.add_plan",
        ("inspection",),
    ),
    "orphans": CommandEntry(
        "Look",
        "List collections that no AgentMemory owns, with the commands to adopt or delete each.",
        "look.orphans.add_orphans",
        ("inspection",),
    ),
    "status": CommandEntry(
        "Look",
        "List the AgentMemory objects, or show one: conditions, collection, and the plan that waits for approval.",
        "look.status.add_status",
        _JOBS,
    ),
    "preset": CommandEntry("Look", "List the presets, or print one.", "look.preset.add_presets"),
    "search": CommandEntry("Memories", "Search a user's memories, ranked by the AgentMemory's settings.", *_API),
    "remember": CommandEntry("Memories", "Store a memory for a user.", *_API),
    "list": CommandEntry("Memories", "List a user's memories, newest first.", *_STORED),
    "get": CommandEntry("Memories", "Show one memory with all its fields.", *_STORED),
    "history": CommandEntry("Memories", "List all versions of a memory, oldest first.", *_STORED),
    "delete": CommandEntry(
        "Memories", "Delete one memory; the memory that it superseded becomes visible again.", *_STORED
    ),
    "forget": CommandEntry(
        "Memories",
        "Erase a user's memories permanently, including copies; all of them only with --everything.",
        *_API,
    ),
    "receipts": CommandEntry("Memories", "List the receipts of erased memories.", *_API),
    "export": CommandEntry("Memories", "Export all memories of a user as JSON lines.", *_TRANSFER),
    "import": CommandEntry(
        "Memories", "Import exported memories for a user; memories that already exist stay unchanged.", *_TRANSFER
    ),
    "approve": CommandEntry(
        "Decide",
        "Approve a plan that waits for approval, or with --all every such plan of a new preset revision.",
        "decide.approve.add_approve",
        _JOBS,
    ),
    "cleanup": CommandEntry(
        "Decide",
        "Request a cleanup now; with --dry-run, list what it would remove and why.",
        "decide.cleanup.add_cleanup",
        ("inspection",),
    ),
    "consolidate": CommandEntry(
        "Decide",
        "Request a consolidation now, undo a run, or approve or reject its proposals.",
        "decide.consolidate.add_consolidate",
        ("inspection",),
    ),
    "rebuild": CommandEntry(
        "Decide",
        "Show a rebuild's progress, or watch, pause, resume, cancel or roll it back.",
        "decide.rebuild.add_rebuild",
        _JOBS,
    ),
    "takeover": CommandEntry(
        "Decide",
        "Transfer collections of a lost cluster, or of another object, to their new AgentMemory objects.",
        "decide.takeover.add_takeover",
        _JOBS,
    ),
    "snapshot": CommandEntry(
        "Snapshots",
        "Create, list, verify, download and delete snapshots.",
        "snapshots.snapshot.add_snapshots",
        ("open_jobs", "downloads"),
    ),
    "restore": CommandEntry(
        "Snapshots",
        "Restore an agent from a snapshot, roll back its last restore, or restore all lost agents with --all.",
        "snapshots.restore.add_restore",
        _JOBS,
    ),
    "uninstall": CommandEntry(
        "Install",
        "Delete all objects and CustomResourceDefinitions, after saving a catalogue of the objects to a file.",
        "install.uninstall.add_uninstall",
        ("open_installed",),
    ),
    "crds": CommandEntry("Install", "Print the CustomResourceDefinitions.", "install.crds.add_crds"),
    "schema": CommandEntry("Install", "Print the JSON Schema of the kinds, for editors.", "install.crds.add_crds"),
    "completion": CommandEntry(
        "Install", "Print a shell completion script: source <(agentmemory completion bash).", PRINTERS
    ),
    "version": CommandEntry("Install", "Print the version.", PRINTERS),
}


_Formatter: Any = typer.Context.formatter_class  # typer does not export its type


class UnbrokenHelpFormatter(_Formatter):  # type: ignore[misc] # as above
    """Help formatter that wraps only between words, so that options and settings can be copied."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Keep a minimum width, because a narrower column cannot hold the longest names. The terminal wraps the lines.
        self.width: int = max(self.width, MIN_HELP_WIDTH)

    def write_dl(self, rows: Any, *args: Any, **options: Any) -> None:
        """Write names with their descriptions, which are not broken at hyphens."""
        super().write_dl([(name, _unbroken(text)) for name, text in rows], *args, **options)

    def write_text(self, text: str) -> None:
        """Write a paragraph, which is not broken at hyphens."""
        super().write_text(_unbroken(text))

    def getvalue(self) -> str:
        """Return the text, with ordinary hyphens."""
        return str(super().getvalue()).replace(NO_BREAK_HYPHEN, "-")


class HelpContext(typer.Context):
    """Context of a command that formats its help with `UnbrokenHelpFormatter`."""

    formatter_class = UnbrokenHelpFormatter


def _unbroken(text: str) -> str:
    # Replace hyphens, after which the wrapper would otherwise break lines.
    return text.replace("-", NO_BREAK_HYPHEN)


def _with_plain_help(command: Any) -> Any:
    """Make a command and its subcommands print help without boxes, which would break words in narrow columns."""
    command.rich_markup_mode, command.context_class = None, HelpContext
    for below in getattr(command, "commands", {}).values():
        # Show the whole help in lists of commands, instead of a shortened first sentence.
        _with_plain_help(below).short_help = below.help
    return command


class LazyCommands(Mapping[str, Any]):
    """The commands by name. A command's module is imported at its first lookup."""

    def __init__(self, verbs: CommandDependencies) -> None:
        self._verbs = verbs

    def __getitem__(self, name: str) -> Any:
        verb = COMMANDS[name]
        module, _, function = verb.adder.rpartition(".")
        app = typer.Typer(callback=lambda: None)
        add = getattr(import_module(f"{__package__}.{module}"), function)
        add(app, *(getattr(self._verbs, need) for need in verb.needs))
        return _with_plain_help(get_group(app).commands[name])

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class LazyGroup(TyperGroup):
    """A command group that lists its commands without importing them."""

    context_class = HelpContext

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write name and help of all commands, in a section for each group."""
        for panel in dict.fromkeys(verb.panel for verb in COMMANDS.values()):
            with formatter.section(panel):
                formatter.write_dl([(name, verb.help) for name, verb in COMMANDS.items() if verb.panel == panel])

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return a stub with name and help of a command, without importing it; None if it is unknown."""
        verb = COMMANDS.get(cmd_name)
        return TyperCommand(cmd_name, help=verb.help, rich_help_panel=verb.panel) if verb else None

    def invoke(self, ctx: Any) -> Any:
        """Run a command. If the value of an option is not one of its choices, suggest the nearest choice."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            mismatch = _NOT_ONE_OF.search(error.message)
            # Import here, because most commands do not need it.
            nearest = import_module("agentmemory_operator.spec.canonical_names").nearest_name
            if mismatch and (nearest_choice := nearest(mismatch[1], _QUOTED.findall(mismatch[2]))):
                error.message += f" Did you mean '{nearest_choice}'?"
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and remaining arguments of a call, importing the command's module.

        Name and command are None if the name is unknown and only completions are requested.
        """
        name, listed, remaining = super().resolve_command(ctx, args)
        return name, self.commands[name] if name else listed, remaining


def build_cli(verbs: CommandDependencies) -> typer.Typer:
    """Build the command `agentmemory`. While a shell asks for completions, running its commands does nothing."""
    commands = CompletionCommands() if COMPLETE in os.environ else LazyCommands(verbs)

    class Group(LazyGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes | {"commands": cast(Any, commands)})

    cli = typer.Typer(
        name=PROGRAM,
        cls=Group,
        help="Long-term memory for AI agents, managed as Kubernetes objects.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def show(is_requested: bool) -> None:  # an option's callback
        if is_requested:
            typer.echo(__version__)
            raise typer.Exit

    @cli.callback()
    def main(
        ctx: typer.Context,
        _: Annotated[bool, typer.Option("--version", callback=show, is_eager=True, help="Print the version.")] = False,
    ) -> None:
        """Pass the stacks to the command. Except for `completion` and `version`, check settings and set up logging."""
        ctx.obj = verbs.stacks
        if COMMANDS[str(ctx.invoked_subcommand)].adder != PRINTERS:
            verbs.prepare()

    return cli

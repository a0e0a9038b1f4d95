"""Which server a command uses if none is named: a development stack that runs here, else the cluster and the usual URL.

| given | the objects | the API |
|---|---|---|
| `--manifests DIR` | those of the folder | |
| `--context NAME`, or called by kubectl | the cluster's | `AGENTMEMORY_URL`, else the usual URL |
| `--url`, `AGENTMEMORY_URL` | of the stack that has this URL, else the cluster's | that one |
| nothing | the stack's, where one runs; else the cluster's | the stack's, else the usual URL |

Nothing is guessed: of several stacks one has to be named, and a stack that listens at the usual URL is never taken for
a cluster's API.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.settings import DEFAULT_API_URL

if TYPE_CHECKING:
    from agentmemory_operator.adapters.folder.running import RunningStack


@dataclass(frozen=True, slots=True)
class Stacks:
    """What a command line knows of development stacks.

    Attributes:
        find: those that run here.
        has_cluster: there is a kubeconfig too, so that a person may have meant its cluster.
        means_cluster: the command is kubectl's, or runs in a pod: a stack is never meant.
    """

    find: "Callable[[], tuple[RunningStack, ...]]" = tuple
    has_cluster: bool = False
    means_cluster: bool = False

    def meant(self, way_out: str) -> "RunningStack | None":
        """The stack that is meant where nothing is named; None where none runs.

        Raises:
            AgentMemoryError: several run; names them and the way out.
        """
        running = () if self.means_cluster else self.find()
        if len(running) > 1:
            raise AgentMemoryError(f"several development stacks run, {way_out}: {'; '.join(map(str, running))}")
        if not running:
            return None
        if self.has_cluster:
            typer.echo(f"agentmemory: asking {running[0]}; --context names a cluster", err=True)
        return running[0]

    def on(self, manifests: Path) -> "RunningStack | None":
        """The stack that works on a folder."""
        folder = manifests.resolve()
        return next((stack for stack in self.find() if stack.manifests.resolve() == folder), None)

    def api(self, url: str | None, context: str | None) -> "tuple[str, RunningStack | None]":
        """URL of the API that is meant, and whose it is where it is a stack's.

        Args:
            url: that an option or the environment names.
            context: of the kubeconfig, that an option names.

        Raises:
            AgentMemoryError: several stacks run, or one listens where the cluster's is looked for.
        """
        if url is not None:
            named = (stack for stack in self.find() if stack.api == url.rstrip("/"))
            return url, None if context else next(named, None)
        if context is None and (stack := self.meant("name one with --url")):
            return stack.api, stack
        for stack in self.find():
            if stack.api == DEFAULT_API_URL:
                raise AgentMemoryError(f"{DEFAULT_API_URL} is {stack}, not a cluster's API: name that with --url")
        return DEFAULT_API_URL, None


def stacks_of(ctx: typer.Context) -> Stacks:
    """What the command line was given; one that was given nothing knows of none."""
    return ctx.obj if isinstance(ctx.obj, Stacks) else Stacks()

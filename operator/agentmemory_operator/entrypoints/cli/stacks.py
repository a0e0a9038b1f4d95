"""Select the objects and the API that a command uses: a running development stack, or the cluster and the default URL.

| given | objects | API |
|---|---|---|
| `--manifests DIR` | of the folder | |
| `--context NAME`, called by kubectl, or in a pod | of the cluster | `AGENTMEMORY_URL`, else the default URL |
| `--url`, `AGENTMEMORY_URL` | of the stack with this URL, else of the cluster | that URL |
| nothing | of the running stack, else of the cluster | of the stack, else the default URL |

Nothing is guessed: if several stacks run, the user has to name one. A stack that listens at the default URL is never
used in place of a cluster's API.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.settings import DEFAULT_API_URL

if TYPE_CHECKING:
    from agentmemory_operator.adapters.folder.running_stacks import RunningStack


@dataclass(frozen=True, slots=True)
class Stacks:
    """The development stacks that a command may refer to.

    Attributes:
        find: Returns the running stacks of this user.
        has_cluster: True if there is a kubeconfig, so that the user may have meant its cluster.
        means_cluster: True if the command is a kubectl plugin or runs in a pod; then no stack is used by default.
    """

    find: "Callable[[], tuple[RunningStack, ...]]" = tuple
    has_cluster: bool = False
    means_cluster: bool = False

    def find_default(self, remedy: str) -> "RunningStack | None":
        """Return the stack to use if no option names one; None if none runs or the command means a cluster.

        If there is also a cluster, a note on standard error names the stack.

        Args:
            remedy: Remedy for the error message.

        Raises:
            AgentMemoryError: If several run. The message contains their names and the remedy.
        """
        running = () if self.means_cluster else self.find()
        if len(running) > 1:
            raise AgentMemoryError(f"several development stacks run, {remedy}: {'; '.join(map(str, running))}")
        if not running:
            return None
        if self.has_cluster:
            typer.echo(f"agentmemory: asking {running[0]}; --context names a cluster", err=True)
        return running[0]

    def find_on(self, manifests: Path) -> "RunningStack | None":
        """Return the running stack on a folder, or None."""
        folder = manifests.resolve()
        return next((stack for stack in self.find() if stack.manifests.resolve() == folder), None)

    def find_api(self, url: str | None, context: str | None) -> "tuple[str, RunningStack | None]":
        """Return the URL of the API to use, and its stack if it belongs to one.

        Args:
            url: URL from an option or the environment; None if neither has one.
            context: kubeconfig context from an option. Any value excludes development stacks.

        Raises:
            AgentMemoryError: If several stacks run and neither `url` nor `context` is given. Also if a stack listens at
                the default URL, which would be used as that of a cluster's API.
        """
        if url is not None:
            matching = (stack for stack in self.find() if stack.api == url.rstrip("/"))
            return url, None if context else next(matching, None)
        if context is None and (stack := self.find_default("name one with --url")):
            return stack.api, stack
        for stack in self.find():
            if stack.api == DEFAULT_API_URL:
                raise AgentMemoryError(f"{DEFAULT_API_URL} is {stack}, not a cluster's API: name that with --url")
        return DEFAULT_API_URL, None


def read_stacks(ctx: typer.Context) -> Stacks:
    """Return the stacks of the command line; none if it was built without them."""
    return ctx.obj if isinstance(ctx.obj, Stacks) else Stacks()

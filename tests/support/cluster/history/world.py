"""Processes of a history: an engine, API processes, two operators. Each can be killed or paused."""

import contextlib
import pathlib
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from agentmemory_operator.spec.kinds.agent_memory import TAKEOVER
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.history.process import AHEAD, PLANT
from tests.support.cluster.traffic.journal import Journal
from tests.support.cluster.traffic.model import Span
from tests.support.cluster.traffic.witness import SPEC
from tests.support.cluster.workspace import SIZE, Workspace
from tests.support.patience import wait_until
from tests.support.programs import Program, free_port, start_qdrant

API_PROCESSES = 3
OPERATORS = 2
TIMEOUT_S = 5
SERVED_WITHIN_S = 90.0
WATCH_S = 0.05
HISTORY_PROCESS = (sys.executable, "-m", "tests.support.cluster.history.process")
# A time that no run reaches: a cleanup would remove memories without a request.
NO_CLEANUP = {"deduplicate": False, "schedule": "0 3 29 2 *"}


@dataclass(slots=True)
class ManagedProcess:
    """A named process.

    Attributes:
        ready: Pattern in its log once it works.
        is_held: True while it is paused, or killed and not restarted.
    """

    name: str
    program: Program
    ready: str
    is_held: bool = False


@dataclass(slots=True)
class HistoryWorld:
    """One agent and all processes that serve or manage it."""

    workspace: Workspace
    journal: Journal
    engine: ManagedProcess
    apis: list[ManagedProcess]
    operators: list[ManagedProcess]
    urls: list[str]
    aliases: "AliasWatch" = field(init=False)

    @property
    def parts(self) -> list[ManagedProcess]:
        return [self.engine, *self.apis, *self.operators]

    def create_agent(self, *, is_dot: bool = False, takeover: str = "") -> None:
        """Create the agent's object.

        Args:
            is_dot: True for the distance Dot.
            takeover: uid of a deleted object; its memories are taken over.
        """
        spec = SPEC | {"lifecycle": NO_CLEANUP, "embedding": {"provider": "none", "dimensions": SIZE}}
        spec |= {"index": {"distance": "Dot"}} if is_dot else {}
        annotations = {TAKEOVER: takeover} if takeover else {}
        self.workspace.create(**spec, changePolicy="Apply", annotations=annotations)

    def kill(self, part: ManagedProcess) -> None:
        """Kill a process with SIGKILL, and record that in the journal."""
        self.journal.record_event(f"kill {part.name}")
        part.is_held = True
        self.journal.record_kill(part.name)
        part.program.kill()

    def start(self, part: ManagedProcess) -> None:
        """Start a killed process; return once it works."""
        part.program.restart(part.ready)
        part.is_held = False
        self.journal.record_event(f"{part.name} is back")

    def pause(self, part: ManagedProcess) -> None:
        self.journal.record_event(f"pause {part.name}")
        part.is_held = True
        part.program.pause()

    def resume(self, part: ManagedProcess) -> None:
        part.program.resume()
        part.is_held = False
        self.journal.record_event(f"{part.name} goes on")

    def revive(self) -> None:
        """Restart processes that ended by themselves. Only an operator may do that, if it may have lost the lease."""
        for part in self.parts:
            if not part.is_held and part.program.returncode is not None:
                self.journal.record_event(f"{part.name} had ended with {part.program.returncode}")
                if part not in self.operators:
                    self.journal.record_fault(f"{part.name} ended by itself: {part.program.log[-800:]}")
                self.start(part)

    def wait_served(self) -> None:
        """Wait until every API process serves a search."""
        body = {"user_id": "nobody", "vector": [1.0] * SIZE}
        for url in self.urls:
            search = f"{url}/v1/agents/{self.workspace.slug}/search"
            wait_until(
                lambda search=search: httpx.post(search, json=body, timeout=10).status_code == 200,
                seconds=SERVED_WITHIN_S,
                what=f"{search}; {self.logs()}",
            )

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(f"--- {part.name}: {part.program.log[-1200:]}" for part in self.parts)


class AliasWatch(threading.Thread):
    """Polls the alias, to determine when it was moved."""

    def __init__(self, url: str, alias: str) -> None:
        super().__init__(daemon=True)
        self._http, self._alias = httpx.Client(base_url=url, timeout=2), alias
        self._is_over = threading.Event()
        # Each target, with the time of the first and of the last read that returned it.
        self._seen: list[tuple[str, float, float]] = []

    def run(self) -> None:
        while not self._is_over.wait(WATCH_S):
            begun = time.monotonic()
            with contextlib.suppress(httpx.HTTPError, KeyError):
                told = self._http.get("/aliases").json()["result"]["aliases"]
                [target] = [each["collection_name"] for each in told if each["alias_name"] == self._alias]
                self._take(target, begun, time.monotonic())

    def close(self) -> None:
        """Stop polling."""
        self._is_over.set()
        self.join()
        self._http.close()

    @property
    def target(self) -> str:
        """The target in the last read."""
        return self._seen[-1][0]

    def moves_since(self, since: float) -> list[Span]:
        """Return the spans of all moves since a time: from the start of one read to the response of the next."""
        now = time.monotonic()
        wait_until(lambda: self._seen and self._seen[-1][2] >= now, seconds=60, what="a look at the alias")
        pairs = zip(self._seen, self._seen[1:], strict=False)
        return [Span(before[2], after[1]) for before, after in pairs if after[1] >= since]

    def _take(self, target: str, begun: float, ended: float) -> None:
        if self._seen and self._seen[-1][0] == target:
            self._seen[-1] = (target, self._seen[-1][1], begun)
        else:
            self._seen.append((target, ended, begun))


@contextlib.contextmanager
def running_world(
    control_plane: ControlPlane, folder: pathlib.Path, *, plant: str = "", ahead_s: float = 0.0
) -> Iterator[HistoryWorld]:
    """Start all processes and create the agent.

    Args:
        plant: Fault in the API; see `process`.
        ahead_s: Shift of clocks, applied on SIGUSR1.
    """
    with contextlib.ExitStack() as stack:
        engine, url = start_qdrant(folder, port=free_port())
        stack.callback(engine.kill)
        environment = {"KUBECONFIG": str(control_plane.kubeconfig), AHEAD: str(ahead_s)}
        ports = [free_port() for _ in range(API_PROCESSES)]
        apis = [
            _start(
                folder,
                f"api-{n}",
                "API http",
                *("api", "--source", "kubernetes", "--port", str(port)),
                **environment,
                AGENTMEMORY_AUTH="none",
                **{PLANT: plant},
            )
            for n, port in enumerate(ports)
        ]
        operators = [
            _start(folder, f"operator-{n}", "leading: |watching ", "operator", **environment) for n in range(OPERATORS)
        ]
        for part in (*apis, *operators):
            stack.callback(part.program.kill)
        workspace = Workspace(control_plane, control_plane.create_namespace("history-"), url)
        stack.callback(workspace.clean)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        world = HistoryWorld(
            workspace, Journal(), ManagedProcess("engine", engine, "Qdrant http"), apis, operators, urls
        )
        for part in (*apis, *operators):
            part.program.wait_for(part.ready)
        workspace.connect(url=url, timeoutSeconds=TIMEOUT_S)
        world.create_agent()
        workspace.wait_ready(seconds=60)
        world.wait_served()
        world.aliases = AliasWatch(url, workspace.alias)
        world.aliases.start()
        stack.callback(world.aliases.close)
        yield world


def _start(folder: pathlib.Path, name: str, ready: str, *command: str, **environment: str) -> ManagedProcess:
    program = Program(folder / f"{name}.log", *HISTORY_PROCESS, *command, **environment)
    return ManagedProcess(name, program, ready)

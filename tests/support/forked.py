"""Run programs of the product as forks of a process that has imported them.

The imports of a start take 1 to 2.5 s of CPU, and a test run starts a thousand programs. All test processes of a run
share one fork server, which the first of them starts and which ends with the run. The forks of a test process end with
it. A fork runs a module like `python -m`, with its own session, environment, folder and files. Tests of the start
itself run the interpreter.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pathlib
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT_MODULE = "agentmemory_operator"
PACKAGES = (PRODUCT_MODULE, "agentmemory_client", "qdrant_devserver")
# Modules that the packages import only when a function is called.
LAZY_IMPORTS = (
    "anyio._backends._asyncio",
    "encodings.idna",
    "rich.console",
    "typer.rich_utils",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
)
# On other systems each command is a new interpreter.
CAN_FORK = sys.platform == "linux"
# These modules read KUBECONFIG when they are imported.
READ_ENVIRONMENT = ("kubernetes.config.kube_config", "kubernetes.aio.config.kube_config")
ORDER_BYTES = 1 << 20
POLL_S = 0.01
START_S = 60.0
PYTHON_M = (sys.executable, "-m")
PR_SET_PDEATHSIG = 1
# Set in all test processes of one run; pytest-xdist sets the same.
RUN_ID = "PYTEST_XDIST_TESTRUNUID"


def die_with_parent() -> Callable[[], None] | None:
    """Return a function for the child to run before exec, which makes the kernel kill it with its parent;

    None off Linux.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask_kernel() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    return ask_kernel


def ask_to_die_with_parent() -> None:
    """Let the kernel kill this process with its parent, if the system supports that."""
    if ask := die_with_parent():
        ask()


class Child(Protocol):
    """Common interface of `Popen` and `Fork`."""

    pid: int

    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


class Fork:
    """A process of the fork server, with the interface of `subprocess.Popen`."""

    def __init__(self, server: "ForkServer", pid: int, command: Sequence[str]) -> None:
        self.pid = pid
        self._server = server
        self._command = command
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        """The exit code at the last `poll` or `wait`."""
        return self._code

    def poll(self) -> int | None:
        """Return the exit code, or the negative signal number; None while it runs."""
        if self._code is None:
            self._code = self._server.code_of(self.pid)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code.

        Raises:
            subprocess.TimeoutExpired: If it still runs after `timeout` seconds.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if ends is not None and time.monotonic() > ends:
                raise subprocess.TimeoutExpired(list(self._command), timeout or 0)
            time.sleep(POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)


class ForkServer:
    """Connection of this test process to the server of its test run; thread-safe."""

    def __init__(self) -> None:
        # Test processes of a run have the parent in common.
        run = os.environ.get(RUN_ID)
        owner = os.getppid() if run else os.getpid()
        address = f"\0forks-{run or uuid.uuid4().hex}"
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not _is_connected(self._channel, address):
            # If several servers start at once, all but one exit, because the address is in use.
            command = [sys.executable, "-m", "tests.support.forked", address[1:], str(owner)]
            # No coverage in forks: they end with `os._exit`, which loses its data.
            env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
            process = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True)
            # The server outlives a worker. With an exit code, `Popen` does not warn about a running process.
            process.returncode = 0
            ends = time.monotonic() + START_S
            while not _is_connected(self._channel, address):
                if time.monotonic() > ends:
                    raise RuntimeError(f"no server of forks at {address!r}")
                time.sleep(POLL_S)
        self._lock = threading.Lock()

    def start(self, command: Sequence[str], files: Sequence[int], cwd: pathlib.Path, env: Mapping[str, str]) -> Fork:
        """Run a module with arguments. `files` are its input, output and errors."""
        order = {"command": list(command), "cwd": str(cwd), "environment": dict(env)}
        return Fork(self, self._call(order, files), command)

    def code_of(self, pid: int) -> int | None:
        """Return the exit code of a fork, or None while it runs."""
        code: int | None = self._call({"poll": pid})
        return code

    def _call(self, order: Mapping[str, Any], files: Sequence[int] = ()) -> Any:
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(order).encode()], files)
            answer = self._channel.recv(ORDER_BYTES)
        if not answer:
            raise RuntimeError("the server of forks ended")
        return json.loads(answer)


def _is_connected(channel: socket.socket, address: str) -> bool:
    """Connect a socket; return False if nothing listens at the address."""
    try:
        channel.connect(address)
    except ConnectionRefusedError:
        return False
    return True


_servers: list[ForkServer] = []


def fork_server() -> ForkServer:
    """Return this process's connection to the fork server; the first call of the test run starts the server."""
    if not _servers:
        _servers.append(ForkServer())
    return _servers[0]


def start_process(
    command: Sequence[str], files: Sequence[int], *, env: Mapping[str, str], cwd: pathlib.Path = ROOT
) -> Child:
    """Start a command in its own session. It ends with this process.

    Args:
        command: Program and arguments. A command that starts with this interpreter and `-m` is forked on Linux.
        files: Its input, output and errors.
    """
    if CAN_FORK and command[:2] == PYTHON_M:
        return fork_server().start(command[2:], files, cwd, env)
    given, output, errors = files
    return subprocess.Popen(
        command,
        stdin=given,
        stdout=output,
        stderr=errors,
        cwd=cwd,
        env=env,
        start_new_session=True,
        preexec_fn=die_with_parent(),
    )


def run_agentmemory(
    *arguments: str,
    env: Mapping[str, str],
    cwd: pathlib.Path = ROOT,
    stdin: int | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run `agentmemory` to its end and return its output.

    Raises:
        subprocess.TimeoutExpired: If it takes longer; it is killed.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, open(os.devnull, "rb") as nothing:
        files = [nothing.fileno() if stdin is None else stdin, output.fileno(), errors.fileno()]
        child = start_process((*PYTHON_M, PRODUCT_MODULE, *arguments), files, cwd=cwd, env=env)
        try:
            code = child.wait(timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        printed = []
        for file in (output, errors):
            file.seek(0)
            printed.append(file.read().decode())
    return subprocess.CompletedProcess(["agentmemory", *arguments], code, *printed)


def import_all() -> None:
    """Import everything that a command may import. Modules with uninstalled dependencies are skipped."""
    for name in (*PACKAGES, *LAZY_IMPORTS):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(getattr(package, "__path__", ()) if name in PACKAGES else (), f"{name}."):
            if not module.name.endswith("__main__"):
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)


def serve(listener: socket.socket, owner: int) -> dict[str, Any]:
    """Serve orders until the owner of the test run ends. In a fork, return the fork's order."""
    forks: dict[socket.socket, set[int]] = {}
    while True:
        inputs: list[int | socket.socket] = [owner, listener, *forks]
        ready, _, _ = select.select(inputs, [], [])
        if owner in ready:
            os._exit(0)
        if listener in ready:
            forks[listener.accept()[0]] = set()
        for channel in forks.keys() & ready:
            if order := take(channel, forks):
                os.close(owner)
                for connected in (listener, *forks):
                    connected.close()
                return order


def take(channel: socket.socket, forks: dict[socket.socket, set[int]]) -> dict[str, Any] | None:
    """Carry out the order of a test process, or end its forks if it has ended. In a fork, return the order."""
    message, files, _, _ = socket.recv_fds(channel, ORDER_BYTES, 3)
    order = json.loads(message or "{}")
    if not order:
        end_forks(forks.pop(channel))
        channel.close()
    elif "poll" in order:
        pid, status = os.waitpid(order["poll"], os.WNOHANG)
        forks[channel].discard(pid)
        channel.send(json.dumps(os.waitstatus_to_exitcode(status) if pid else None).encode())
    elif pid := os.fork():
        forks[channel].add(pid)
    else:
        become(order, files)
        channel.send(json.dumps(os.getpid()).encode())
        return dict(order)
    for file in files:
        os.close(file)
    return None


def end_forks(pids: set[int]) -> None:
    """Kill the forks of a test process that has ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def become(order: Mapping[str, Any], files: Sequence[int]) -> None:
    """Set up the session, folder, environment and files of a new process."""
    os.setsid()
    ask_to_die_with_parent()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for name in READ_ENVIRONMENT:
        if module := sys.modules.get(name):
            location = os.environ.get("KUBECONFIG") or str(pathlib.Path.home() / ".kube" / "config")
            vars(module)["KUBE_CONFIG_DEFAULT_LOCATION"] = location
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    # Line-buffered, so that tests can wait for output.
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def run_to_end(module: str) -> int:
    """Run a module as the main module; return its exit code. Print errors like an interpreter."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as exc:
        if isinstance(exc.code, str):
            print(exc.code, file=sys.stderr)
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:  # noqa: BLE001 # as an interpreter does
        traceback.print_exc()
        return 1
    return 0


def main() -> NoReturn:
    """Serve forks for a test run, until the process that owns it ends. Each fork continues as its module."""
    address, owner = sys.argv[1:]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0{address}")
        owned = os.pidfd_open(int(owner))
    except OSError:
        # Another server has the address, or the test run has ended.
        sys.exit()
    listener.listen()
    import_all()
    gc.collect()
    gc.freeze()
    module, *arguments = serve(listener, owned)["command"]
    # `runpy` sets the module's own name.
    sys.argv = ["", *arguments]
    code = run_to_end(module)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    # A regular exit would wait in a fork for threads of libraries that exist only in the server.
    os._exit(code)


if __name__ == "__main__":
    main()

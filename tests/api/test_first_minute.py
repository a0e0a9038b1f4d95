"""`agentmemory dev` without arguments, and the commands that find it."""

import contextlib
import os
import pathlib
import re
import shlex
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.forked import run_agentmemory
from tests.support.pages import read_commands_by_heading
from tests.support.programs import AGENTMEMORY, Program, clean_environment, running

BANNER = r"Paste into another terminal:\n  (.*)\n  (.*)\n"


class Home:
    """Home directory of a user, with a shell."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.place = path / ".local" / "share" / "agentmemory"
        self.environment = {"HOME": str(path), "XDG_DATA_HOME": "", "NO_PROXY": "127.0.0.1"}

    @contextlib.contextmanager
    def dev(self, *options: str, log: str = "dev.log", **environment: str) -> Iterator[Program]:
        command = [*AGENTMEMORY, "dev", "--port", "0", *options]
        with running(Program(self.path / log, *command, **self.environment | environment)) as program:
            yield program

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Run a command; return exit status, output and errors."""
        known = clean_environment() | self.environment | environment
        done = run_agentmemory(*arguments, env=known)
        return done.returncode, done.stdout, done.stderr

    def shell(self, command: str, **environment: str) -> str:
        """Run a pasted shell command; return its output."""
        known = clean_environment() | self.environment | environment
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=known, timeout=60, check=True)
        return done.stdout


@pytest.fixture
def home(tmp_path: pathlib.Path) -> Home:
    return Home(tmp_path)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Program]]:
    """`agentmemory dev` without arguments, and the home in which it runs."""
    home = Home(tmp_path_factory.mktemp("home"))
    with home.dev() as program:
        program.wait_for(BANNER)
        yield home, program


@pytest.fixture
def known(started: tuple[Home, Program]) -> Home:
    return started[0]


@pytest.fixture
def banner(started: tuple[Home, Program]) -> re.Match[str]:
    return started[1].wait_for(BANNER)


def test_commands_of_banner_can_be_pasted(known: Home, banner: re.Match[str]) -> None:
    stored, found = known.shell(banner[1]), known.shell(banner[2])

    assert stored.startswith(("ADD ", "NONE "))
    assert "Ada drinks tea, never coffee" in found
    assert len(found.splitlines()) <= 5


def test_output_is_one_block_without_log_lines(started: tuple[Home, Program], banner: re.Match[str]) -> None:
    home, program = started
    program.wait_for("Ctrl-C")

    api, qdrant = (program.wait_for(rf"{name} (http://\S+)")[1] for name in ("API", "Qdrant"))
    assert program.log.splitlines() == [
        *(f"API {api}", f"Explorer {api}/ui", f"Docs {api}/docs", f"MCP {api}/mcp", f"Qdrant {qdrant}"),
        "  the dev Qdrant is used for every QdrantConnection, whatever its URL",
        *(f"Data {home.place}/dev", f"Manifests {home.place}/dev/manifests"),
        "  watched for changes; the status of each object is in .status there",
        *("Access without a token, for everybody on this machine", ""),
        *("Ready. Paste into another terminal:", f"  {banner[1]}", f"  {banner[2]}", ""),
        "Ctrl-C stops it. The memories stay in the data folder.",
    ]
    assert sorted(path.name for path in (home.place / "dev" / "manifests").iterdir()) == [
        *(".status", "assistant.yaml", "connection.yaml")
    ]
    assert (home.place / "dev").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("options", "level"), [(("-v",), ""), ((), "info")], ids=["option", "setting"])
def test_messages_are_logged_on_request(home: Home, options: tuple[str, ...], level: str) -> None:
    with home.dev(*options, AGENTMEMORY_LOG_LEVEL=level) as program:
        program.wait_for(r" INFO .*AgentMemory default/assistant: Applied")


def test_commands_of_a_second_stack_name_it(known: Home, tmp_path: pathlib.Path) -> None:
    assert known.run("init", "other", "--into", str(tmp_path / "m"))[0] == 0
    with known.dev("--data", str(tmp_path / "d"), "--manifests", str(tmp_path / "m"), log="second.log") as second:
        url = second.wait_for(r"API (http://\S+)")[1]

        assert second.wait_for(BANNER)[2].endswith(f" --url {url}")


def test_commands_find_the_stack(known: Home) -> None:
    remembered = known.run("remember", "assistant", "Pays by invoice", "--user", "grace")
    found = known.run("search", "assistant", "how does she pay?", "--user", "grace", "--explain")
    status = known.run("status", "assistant")
    snapshot = known.run("snapshot", "create", "assistant", "--name", "first", "--wait")
    listed = known.run("snapshot", "list", "assistant")
    cleanup = known.run("cleanup", "assistant", "--dry-run")
    orphans = known.run("orphans")
    exported = known.run("export", "assistant", "--user", "grace")

    answers = (remembered, found, status, snapshot, listed, cleanup, orphans, exported)
    assert [code for code, _, _ in answers] == [0] * 8, answers
    assert "Pays by invoice" in found[1]
    assert "similarity" in found[1]
    assert "assistant" in status[1]
    assert "first" in listed[1]
    assert "Pays by invoice" in exported[1]


def test_commands_of_pages_find_the_stack(known: Home, tmp_path: pathlib.Path) -> None:
    """Runs the commands of README.md, and of "Which server a command uses" in cli.md."""
    shown = [
        *read_commands_by_heading("README.md")["Without Kubernetes"],
        *read_commands_by_heading("docs/cli.md")["Which server a command uses"],
    ]
    commands = [command.removeprefix(".venv/bin/") for command in shown if " dev" not in command]
    assert len(commands) == 6

    for command in commands:
        _, *arguments = shlex.split(command, comments=True)
        done = known.run(*arguments, *(("--into", str(tmp_path)) if arguments[0] == "init" else ()))
        assert done[0] == 0, (command, done)


def test_namespace_selects_its_folder(known: Home) -> None:
    right = known.run("search", "assistant", "q", "--user", "grace", "-n", "default")
    wrong = known.run("search", "assistant", "q", "--user", "grace", "-n", "elsewhere")

    assert right[0] == 0
    assert (wrong[0], "there is no AgentMemory elsewhere/assistant" in wrong[2]) == (1, True)


def test_kubeconfig_makes_commands_name_their_target(known: Home, tmp_path: pathlib.Path) -> None:
    (tmp_path / "config").write_text("apiVersion: v1\nkind: Config\n")

    code, output, errors = known.run("status", "assistant", "-o", "json", KUBECONFIG=str(tmp_path / "config"))
    named = known.run("status", "assistant", "--context", "prod", KUBECONFIG=str(tmp_path / "config"))

    assert (code, output[0]) == (0, "{")
    assert errors.startswith(f"agentmemory: asking the development stack on {known.place}/dev/manifests")
    assert named[0] == 1
    assert "asking" not in named[2]


def test_second_stack_names_the_first(known: Home) -> None:
    code, _, error = known.run("dev", "--port", "0")
    elsewhere = known.run(
        "dev", "--port", "0", "--data", str(known.path / "d"), "--manifests", str(known.place / "dev/manifests")
    )

    assert (code, elsewhere[0]) == (1, 1)
    for message in (error, elsewhere[2]):
        assert "agentmemory: the development stack on " in message
        assert "stop it, or name other folders with --data and --manifests" in message


def test_killed_stack_is_unlisted_and_resumable(home: Home) -> None:
    with home.dev() as program:
        program.wait_for(BANNER)
        home.run("remember", "assistant", "Likes tea", "--user", "ada")
        program.kill()
        dead = home.run("status", "assistant", KUBECONFIG=os.devnull)
        assert dead[0] == 1
        assert "asking" not in dead[2]
        assert list((home.place / "running").iterdir()) == []

        program.restart(BANNER)
        found = home.run("search", "assistant", "tea", "--user", "ada")

    assert "Likes tea" in found[1]


def test_commands_of_banner_send_the_token(home: Home) -> None:
    secret = "development"
    mode = {"AGENTMEMORY_AUTH": "token", "AGENTMEMORY_TOKEN": secret}
    with home.dev(**mode) as program:
        calls = program.wait_for(BANNER)
        stored = home.shell(calls[1], AGENTMEMORY_TOKEN=secret)
        refused = home.run("search", "assistant", "tea", "--user", "ada")

    assert stored.startswith("ADD ")
    assert "Access with the token of AGENTMEMORY_TOKEN" in program.log
    assert secret not in program.log
    assert (refused[0], "no token" in refused[2]) == (1, True)


def test_empty_folder_suggests_init(home: Home) -> None:
    manifests = home.path / "manifests"
    manifests.mkdir()
    with home.dev("--manifests", str(manifests), "--data", str(home.path / "data")) as program:
        suggestion = program.wait_for(r"No AgentMemory is declared in .*\n  agentmemory (init .*)\n")
        assert home.run(*suggestion[1].split())[0] == 0
        program.wait_for('search my-agent "')


def test_port_in_use_is_reported_with_fix(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, error = home.run("dev", "--port", str(port))

    assert code == 1
    last = error.splitlines()[-1]
    assert last == f"agentmemory: port {port} is taken by another program: give another --port, or 0 for any free one"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"HOME": os.devnull}, f"{os.devnull}/.local"),
        ({"XDG_DATA_HOME": os.devnull}, f"{os.devnull}/agentmemory"),
        ({"HOME": ""}, "neither HOME nor XDG_DATA_HOME is set, so there is no folder for the memories"),
        ({"HOME": "", "XDG_DATA_HOME": "relative"}, "neither HOME nor XDG_DATA_HOME"),
    ],
    ids=["home", "xdg", "none", "relative"],
)
def test_missing_home_is_reported_in_one_line(home: Home, environment: dict[str, str], message: str) -> None:
    code, output, error = home.run("dev", "--port", "0", **environment)

    assert (code, output) == (1, "")
    assert message in error
    assert "--data" in error.splitlines()[-1]
    assert len(error.splitlines()) == 1

"""Write first-minute.txt: from an empty home folder to the first answer, with nothing installed and nothing cached.

The checkout is a clone of the last commit. All packages are downloaded from pip's index.

`.venv/bin/python -m docs.captures.first_minute`
"""

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.support.programs import ROOT, Program, clean_environment, free_port, running

CAPTURE = Path(__file__).with_name("first-minute.txt")
HEAD = """\
# Python 3.11, make, and a home folder with nothing but a checkout. Other programs kept this machine's two cores busy
# (a load of {load:.0f}): seconds of processor time are the commands' own, and about what they take on an idle machine;
# a download adds its own.

"""
INSTALL = "make -C agentmemory-operator install"
ASK = (
    'agentmemory remember assistant "Grace pays by invoice" --user grace',
    'agentmemory search assistant "how does she pay?" --user grace --explain',
    'agentmemory search assistant "how does she pay?" --user grace --threshold 0.9',
    "agentmemory status assistant",
)
CALLS = re.compile(r"Paste into another terminal:\n  (.*)\n  (.*)\n")
TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Duration:
    """Duration of a step, in seconds of the wall clock and of processor time."""

    wall_s: float
    processor_s: float

    def __add__(self, other: "Duration") -> "Duration":
        """Return the duration of both steps."""
        return Duration(self.wall_s + other.wall_s, self.processor_s + other.processor_s)

    def __str__(self) -> str:
        """Return the line that the capture shows."""
        return f"{self.wall_s:.1f} s, {self.processor_s:.1f} s of processor time"


def main() -> None:
    """Run the commands, and write the text of their terminal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "agentmemory-operator")], check=True)
        text = "".join(run_commands(folder))
    CAPTURE.write_text(HEAD.format(load=os.getloadavg()[1]) + text.replace(str(folder), "~"))
    print(CAPTURE.read_text())


def run_commands(folder: Path) -> Iterator[str]:
    """Yield the output of the commands, and their durations."""
    environment = clean_environment() | {"HOME": str(folder), "XDG_DATA_HOME": "", "COLUMNS": "120"}
    environment |= {
        "PATH": f"{folder}/.local/bin:/usr/bin:/bin",
        "PYTHON": os.path.realpath(sys.executable),
        "PYTHONPATH": "",
        "PIP_NO_CACHE_DIR": "1",
        "KUBECONFIG": os.devnull,
        "NO_PROXY": "127.0.0.1",
    }
    environment |= {"PYTHONDONTWRITEBYTECODE": ""}
    printed, took = run(f"{INSTALL} --no-print-directory", folder, environment)
    yield f"$ {INSTALL}\n{printed}# {took}: {packages(folder)} packages, {installed(folder)} MB on disk\n"
    _, again = run(INSTALL, folder, environment)
    yield f"# the same again, with all packages of others there: {again}\n\n"
    port, before = str(free_port()), processor_s()
    started = time.monotonic()
    with ExitStack() as stack:
        command = (str(folder / ".local/bin/agentmemory"), "dev", "--port", port)
        program = stack.enter_context(running(Program(folder / "dev.log", *command, **environment)))
        calls = program.wait_for(CALLS.pattern)
        answers = [run(call, folder, environment)[0] for call in calls.groups()]
        taken = Duration(time.monotonic() - started, processor_s() - before + processor_s_of(program.pid))
        yield "$ agentmemory dev\n" + "".join(f"{line}\n" for line in banner(program.log)).replace(port, "8080")
        for call, answer in zip(calls.groups(), answers, strict=True):
            yield f"\n$ {call}\n{answer}".replace(port, "8080")
        yield f"# from `agentmemory dev` to this answer: {taken}\n"
        total, own = took + taken, again + taken
        yield f"# from the empty folder to this answer: {total}; of it without packages of others: {own}\n"
        for call in ASK:
            yield f"\n$ {call}\n{run(call, folder, environment)[0]}".replace(port, "8080")


def run(command: str, folder: Path, environment: Mapping[str, str]) -> tuple[str, Duration]:
    """Run a command in a shell; return its output and duration."""
    started, before = time.monotonic(), processor_s()
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=dict(environment), cwd=folder, timeout=TIMEOUT_S
    )
    if done.returncode:
        sys.exit(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr, Duration(time.monotonic() - started, processor_s() - before)


def processor_s() -> float:
    """Return the processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def processor_s_of(pid: int) -> float:
    """Return the processor time of a running program."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def packages(folder: Path) -> int:
    """Return the number of installed distributions."""
    return len(list(folder.glob(".local/share/agentmemory/program/lib/*/site-packages/*.dist-info")))


def installed(folder: Path) -> int:
    """Return the size of the installed packages in MB."""
    files = folder.glob(".local/share/agentmemory/program/lib/*/site-packages/**/*")
    return round(sum(path.stat().st_size for path in files if path.is_file()) / 1e6)


def banner(log: str) -> list[str]:
    """Return the output of `agentmemory dev` without log lines."""
    return [line for line in log.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]


if __name__ == "__main__":
    main()

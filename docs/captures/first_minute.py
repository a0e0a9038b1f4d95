"""Write first-minute.txt: from a blank folder to the first answer, with nothing installed and nothing cached.

The wheels are built of this tree, as a release has them; what they need is downloaded from the index of pip and uv.

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

SHOWN = Path(__file__).with_name("first-minute.txt")
HEAD = """\
# Python 3.11, uv and an empty folder; `wheels` holds the three of a release, which are on no index yet. Other programs
# kept this machine's two cores busy meanwhile (a load of 20 to 30): seconds of processor time are the commands' own.

"""
PARTS = (".", "./client", "./devserver")
INSTALL = "uv pip install --no-cache --find-links wheels 'agentmemory-operator[dev]'"
ASK = (
    'agentmemory remember assistant "Grace pays by invoice" --user grace',
    'agentmemory search assistant "how does she pay?" --user grace --explain',
    'agentmemory search assistant "how does she pay?" --user grace --threshold 0.9',
    "agentmemory status assistant",
)
SIZE = re.compile(r"Downloading \S+ \(([\d.]+)MiB\)")
CALLS = re.compile(r"Paste into another terminal:\n  (.*)\n  (.*)\n")
LATEST_S = 600


@dataclass(frozen=True, slots=True)
class Took:
    """What a step took: seconds on the wall clock, and of processors."""

    wall_s: float
    processor_s: float

    def __str__(self) -> str:
        """For people."""
        return f"{self.wall_s:.1f} s, {self.processor_s:.1f} s of processor time"


def main() -> None:
    """Play it and write down what a terminal shows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*build, "--wheel-dir", str(folder / "wheels"), *PARTS], cwd=ROOT, check=True)
        told = HEAD + "".join(play(folder))
    SHOWN.write_text(told.replace(str(folder), "~"))
    print(SHOWN.read_text())


def play(folder: Path) -> Iterator[str]:
    """Yield what the commands print, and what they took."""
    environment = clean_environment() | {"HOME": str(folder), "XDG_DATA_HOME": "", "COLUMNS": "120"}
    tools = folder / "tools" / "bin"
    environment |= {
        "PATH": f"{folder}/.venv/bin:{tools}:/usr/bin:/bin",
        "KUBECONFIG": os.devnull,
        "NO_PROXY": "127.0.0.1",
    }
    environment |= {"PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([sys.executable, "-m", "venv", str(tools.parent)], check=True)
    subprocess.run([str(tools / "pip"), "install", "--quiet", "uv"], check=True)
    run(f"uv venv --quiet --python {sys.executable}", folder, environment)
    printed, took = run(INSTALL, folder, environment)
    yield f"$ uv venv && . .venv/bin/activate\n$ {INSTALL}\n"
    told = (
        f"{downloaded(printed):.0f} MB of large downloads, {packages(folder)} packages, {installed(folder)} MB on disk"
    )
    yield f"# {took}: {told}\n\n"
    port, before = str(free_port()), processor_s()
    started = time.monotonic()
    with ExitStack() as stack:
        command = (str(folder / ".venv/bin/agentmemory"), "dev", "--port", port)
        program = stack.enter_context(running(Program(folder / "dev.log", *command, **environment)))
        calls = program.wait_for(CALLS.pattern)
        answers = [run(call, folder, environment)[0] for call in calls.groups()]
        taken = Took(time.monotonic() - started, processor_s() - before + spent(program.pid))
        yield "$ agentmemory dev\n" + "".join(f"{line}\n" for line in banner(program.log)).replace(port, "8080")
        for call, answer in zip(calls.groups(), answers, strict=True):
            yield f"\n$ {call}\n{answer}".replace(port, "8080")
        yield f"# from `agentmemory dev` to this answer: {taken}\n"
        for asked in ASK:
            yield f"\n$ {asked}\n{run(asked, folder, environment)[0]}".replace(port, "8080")


def run(command: str, folder: Path, environment: Mapping[str, str]) -> tuple[str, Took]:
    """Run a command in a shell; return what it printed and what it took."""
    started, before = time.monotonic(), processor_s()
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=dict(environment), cwd=folder, timeout=LATEST_S
    )
    if done.returncode:
        sys.exit(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr, Took(time.monotonic() - started, processor_s() - before)


def processor_s() -> float:
    """Processor time of all programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spent(pid: int) -> float:
    """Processor time of a program that runs."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def downloaded(printed: str) -> float:
    """How many MB uv says that it has downloaded: it names what has 1 MiB or more."""
    return sum(float(size) * 1.048576 for size in SIZE.findall(printed))


def packages(folder: Path) -> int:
    """How many distributions are installed."""
    return len(list(folder.glob(".venv/lib/*/site-packages/*.dist-info")))


def installed(folder: Path) -> int:
    """How many MB the folder of packages has."""
    files = folder.glob(".venv/lib/*/site-packages/**/*")
    return round(sum(path.stat().st_size for path in files if path.is_file()) / 1e6)


def banner(log: str) -> list[str]:
    """What it says, without its log."""
    return [line for line in log.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]


if __name__ == "__main__":
    main()

"""`make demo`: the complete output, a failed expectation, and cleanup."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_S = 100


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Folder for the files of a demo; asserts that no file and no process of it remains."""
    yield tmp_path

    # onnxruntime, which only the tests install (with fastembed), numbers its sessions in a file.
    assert [path for path in tmp_path.iterdir() if path.name != ".ses"] == []
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert [line for line in processes.splitlines() if str(tmp_path) in line] == []


def begin(folder: Path, *arguments: str, examples: Path = EXAMPLES, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(examples / "demo" / "demo.py"), *arguments],
        env=os.environ | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(demo: subprocess.Popen[str]) -> str:
    """Return the remaining output. Fail if the demo does not end within `LIMIT_S`."""
    try:
        return demo.communicate(timeout=LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        demo.terminate()
        pytest.fail(f"the demo was not done after {LIMIT_S} s; its output:\n{demo.communicate()[0]}")


@pytest.fixture
def used_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy of the examples with the status that `make dev` leaves."""
    examples = tmp_path_factory.mktemp("used") / "examples"
    shutil.copytree(EXAMPLES, examples, ignore=shutil.ignore_patterns(".status", "__pycache__"))
    status = examples / "quickstart" / ".status" / "agents.support-bot.agentmemory.json"
    status.parent.mkdir()
    state = {"uid": "6d2f", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": []}
    alias = "agent_memory_support-bot"
    record = {
        "apiVersion": "agentmemory.dev/v1alpha1",
        "kind": "AgentMemory",
        "metadata": {"namespace": "agents", "name": "support-bot"} | state,
        "spec": {},
        "status": {"collection": {"alias": alias, "physical": f"{alias}__1"}},
    }
    status.write_text(json.dumps(record))
    return examples


def test_prints_everything_whatever_servers_are_set(folder: Path, used_examples: Path) -> None:
    """Environment variables of other servers and proxies, and the status of an earlier `make dev`, have no effect."""

    elsewhere = "http://127.0.0.1:9"
    ignored = {"QDRANT_URL": elsewhere, "AGENTMEMORY_AUTH": "token", "HTTP_PROXY": elsewhere, "FORCE_COLOR": "1"}
    demo = begin(folder, "--details", examples=used_examples, **ignored)
    output = finish(demo)

    assert demo.returncode == 0, output
    for line in (
        *(rf"^{number} of 4  [A-Z]" for number in (1, 2, 3, 4)),
        r"Ready=True",
        r"HNSW: m +16 +16 *$",
        r"^alias agent_memory_support-bot -> agent_memory_support-bot__1$",
        r"268 memories in 4 requests",
        r"^score = 0\.5 x similarity \+ 0\.3 x recency \+ 0\.2 x utility$",
        r"^score = 0\.2 x similarity \+ 0\.7 x recency \+ 0\.1 x utility$",
        r"^2 -> 1 +Next step for the ingest pods",
        r"^1 -> \d+ +Ingest pods run out of memory",
        r"generation 2",
        r"All 269 acknowledged memories",
        r"^MemorySnapshot before-upgrade: done in [\d.]+ s$",
        r"^  269 memories, 269 before and 269 after it was made$",
        r"^POST /v1/agents/support-bot/search: 503 ",
        r"^MemoryRestore undo: done in [\d.]+ s$",
        r"^alias agent_memory_support-bot -> agent_memory_support-bot__2$",
        r"^A MemoryRestore brought it back: all \d+ memories that have not expired read as$",
        r"^before, and 12 questions have the same answers\.$",
        r"^whole demo +[\d.]+ s",
        r"^Next\n.+agentmemory dev",
    ):
        assert re.search(line, output, re.MULTILINE), f"no line like {line} in:\n{output}"
    assert "\x1b" not in output, "escape codes in a pipe"
    assert max(map(len, output.splitlines())) <= 100


def test_failed_expectation_is_named_and_ends_it(folder: Path) -> None:
    questions = (EXAMPLES / "quickstart" / "questions.toml").read_text("utf-8")
    wrong = folder / "questions.toml"
    wrong.write_text(questions.replace('expect = "Ruth Abara leads"', 'expect = "Deepak Rao leads"'), "utf-8")
    demo = begin(folder, "--questions", str(wrong))
    output = finish(demo)
    wrong.unlink()

    assert demo.returncode == 1, output
    told, _, failure = output.partition("FAILED: ")
    assert failure.startswith("question 'who-approves': Who approves production changes at Brightwater?")
    assert "expected among the first 5: … Deepak Rao leads …" in failure
    assert "Ruth Abara leads Brightwater's platform team" in failure
    assert "1 of 4  One manifest gives an agent a memory" in told
    for later in ("3 of 4", "HNSW", "POST /v1/", "alias agent_memory"):
        assert later not in told, "in a later scene, or only with --details"


@pytest.mark.faults
def test_ctrl_c_stops_demo_and_stack(folder: Path) -> None:
    demo = begin(folder)
    output = ""
    assert demo.stdout is not None
    with demo.stdout as printed:
        for line in printed:
            # Interrupt only once: rich prints an interrupted line again.
            if line.startswith("2 of 4") and "\n2 of 4" not in output:
                demo.send_signal(signal.SIGINT)
            output += line

    assert demo.wait(LIMIT_S) == 130, output


@pytest.mark.parametrize(("status", "shown"), [(0, ""), (3, "ERROR: no such package")])
def test_installation_shows_its_progress(tmp_path: Path, status: int, shown: str) -> None:
    lock, pip = tmp_path / "run.txt", tmp_path / "pip"
    lock.write_text("".join(f"package-{number}==1.{number} --hash=x\n" for number in range(25)))
    collecting = "".join(f"echo Collecting package-{number}==1.{number}\n" for number in range(25))
    pip.write_text(f"{collecting}echo Installing collected packages: a, b\necho {shown} >&2\nexit {status}\n")

    command = [sys.executable, str(EXAMPLES.parent / "requirements/run_pip.py"), str(lock), "sh", str(pip)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    progress = ["10 of 25 packages", "20 of 25 packages", "25 of 25 packages, writing them to disk ..."]
    assert (done.returncode, [line.strip() for line in done.stdout.splitlines()]) == (status, progress)
    assert (shown in done.stderr, bool(done.stderr)) == (True, bool(status))

"""`make demo`: the complete output, a failed expectation, and cleanup."""

import os
import re
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


def begin(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / "demo" / "demo.py"), *arguments],
        env=os.environ | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(demo: subprocess.Popen[str]) -> str:
    """Return the remaining output."""
    try:
        return demo.communicate(timeout=LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        demo.terminate()
        pytest.fail(f"the demo was not done after {LIMIT_S} s; its output:\n{demo.communicate()[0]}")


def test_prints_everything_whatever_servers_are_set(folder: Path) -> None:
    """Environment variables of other servers and proxies have no effect."""

    elsewhere = "http://127.0.0.1:9"
    demo = begin(folder, QDRANT_URL=elsewhere, AGENTMEMORY_AUTH="token", HTTP_PROXY=elsewhere, FORCE_COLOR="1")
    output = finish(demo)

    assert demo.returncode == 0, output
    for line in (
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
        r"^All \d+ memories read as before the loss;$",
        r"^12 questions have the same answers\.$",
        r"^whole demo +[\d.]+ s",
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
    failure = output.partition("FAILED: ")[2]
    assert failure.startswith("question 'who-approves': Who approves production changes at Brightwater?")
    assert "expected among the first 5: … Deepak Rao leads …" in failure
    assert "Ruth Abara leads Brightwater's platform team" in failure
    assert "Look at one ranking" not in output


def test_ctrl_c_stops_demo_and_stack(folder: Path) -> None:
    demo = begin(folder)
    output = ""
    assert demo.stdout is not None
    with demo.stdout as printed:
        for line in printed:
            # Only once: rich prints an interrupted line again.
            if line.startswith("3. ") and "\n3. " not in output:
                demo.send_signal(signal.SIGINT)
            output += line

    assert demo.wait(LIMIT_S) == 130, output

"""Command line with arguments and terminals of any encoding: messages, never a traceback."""

import os
import subprocess
import sys

import pytest

MODULE = [sys.executable, "-m", "agentmemory_operator"]


def run(*arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*MODULE, *arguments], capture_output=True, env=os.environ | environment, check=False)


@pytest.mark.parametrize(
    ("argument", "locale"),
    [
        (b"caf\xe9", {}),
        (b"\xed\xa0\x80", {}),
        (b"\xff", {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
    ],
)
def test_argument_that_is_no_text_is_named(argument: bytes, locale: dict[str, str]) -> None:
    result = run("search", "assistant", argument, "--user", "ada", **locale)

    assert result.returncode == 2
    assert result.stderr.startswith(b"agentmemory: argument 3 is not valid ")
    assert b"Traceback" not in result.stderr


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_terminal_of_another_encoding_is_supported(encoding: str) -> None:
    result = run("validate", "-f", "/nowhere/\u96ea", PYTHONIOENCODING=encoding, PYTHONUTF8="0")

    assert result.returncode == 1
    assert b": there is no such file or folder" in result.stderr


def test_full_disk_prints_one_line() -> None:
    with open("/dev/full", "wb") as full:  # a device that is always full
        result = subprocess.run([*MODULE, "crds"], stdout=full, stderr=subprocess.PIPE, check=False)

    assert result.returncode == 1
    assert result.stderr == b"agentmemory: [Errno 28] No space left on device\n"

"""Whatever the bytes of an argument and the encoding of a terminal, the command line prints text, never a traceback."""

import os
import subprocess
import sys

import pytest

MODULE = [sys.executable, "-m", "agentmemory_operator"]


def run(*arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*MODULE, *arguments], capture_output=True, env=os.environ | environment, check=False)


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}], ids=str)
@pytest.mark.parametrize("argument", [b"\xff", b"caf\xe9", b"\xed\xa0\x80"], ids=repr)
def test_an_argument_that_is_no_text_is_named(argument: bytes, locale: dict[str, str]) -> None:
    done = run("search", "assistant", argument, "--user", "ada", **locale)

    assert done.returncode == 2
    assert done.stderr.startswith(b"agentmemory: argument 3 is not valid ")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_of_another_encoding_is_served(encoding: str) -> None:
    done = run("validate", "-f", "/nowhere/\u96ea", PYTHONIOENCODING=encoding, PYTHONUTF8="0")

    assert done.returncode == 1
    assert b": there is no such file or folder" in done.stderr


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:  # a device that is always full
        done = subprocess.run([*MODULE, "crds"], stdout=full, stderr=subprocess.PIPE, check=False)

    assert done.returncode == 1
    assert done.stderr == b"agentmemory: [Errno 28] No space left on device\n"

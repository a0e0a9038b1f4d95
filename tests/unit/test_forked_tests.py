"""`--forks`: the tests of a run in forks of one process."""

import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tests are forked on Linux only")

COLLECTED = """
import os, pathlib
with open(os.environ["COLLECTED"], "a") as file:
    file.write(__name__ + "\\n")
"""
FILES = {
    "test_a.py": """
import os, pytest, sys
ERRORS = sys.stderr

@pytest.fixture(scope="module")
def process():
    return os.getpid()

@pytest.mark.parametrize("number", range(3))
def test_is_in_one_process(process, number, tmp_path):
    assert os.getpid() == process != os.getppid()

def test_fails():
    print("printed by the test")
    print("printed to the stream of the import", file=ERRORS)
    os.write(ERRORS.fileno(), b"written to its file")
    assert 1 == 2
""",
    "test_b.py": """
import os, pytest, time

def test_before():
    pass

def test_ends_the_process():
    # The tests after this one run in another process than `test_last`, whose session then ends with it.
    while not os.path.exists("last"):
        time.sleep(0.01)
    os._exit(7)

@pytest.mark.skip(reason="for a reason")
def test_is_skipped():
    pass

def test_after():
    pass
""",
    "test_c.py": """
import pytest

@pytest.fixture(scope="session")
def ended():
    yield
    raise OSError("at the end")

def test_last(ended):
    open("last", "w").close()
""",
}


def run_forked(folder: pathlib.Path, *options: str) -> tuple[Mapping[str, str], str]:
    """Run `FILES`; return the result of each test and the output."""
    for name, text in FILES.items():
        (folder / name).write_text(COLLECTED + text)
    plugin = "tests.support.forked_tests"
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", "-p", plugin, "--forks", "2"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "COLLECTED": str(folder / "collected"),
    }
    done = subprocess.run(
        [*command, "--junitxml", "results.xml", *options], cwd=folder, env=environment, capture_output=True, text=True
    )
    cases = ET.parse(folder / "results.xml").iter("testcase")
    return {case.attrib["name"]: case[0].tag if len(case) else "passed" for case in cases}, done.stdout


def test_each_test_runs_once_in_a_fork(tmp_path: pathlib.Path) -> None:
    results, output = run_forked(tmp_path)

    assert results == {
        **{f"test_is_in_one_process[{number}]": "passed" for number in range(3)},
        "test_fails": "failure",
        "test_before": "passed",
        "test_ends_the_process": "failure",
        "test_is_skipped": "skipped",
        "test_after": "passed",
        "test_last": "error",
    }
    assert (tmp_path / "collected").read_text().split() == ["test_a", "test_b", "test_c"]
    assert output.count("printed by the test") == 2
    assert output.count("printed to the stream of the import") == 2
    assert output.count("written to its file") == 2
    assert "ended with exit code 7" in output
    assert "OSError: at the end" in output
    assert "forked_tests.py" not in output
    assert "2 failed, 6 passed, 1 skipped, 1 error" in output


def test_first_failure_ends_the_run_on_request(tmp_path: pathlib.Path) -> None:
    results, output = run_forked(tmp_path, "-x", "test_a.py::test_fails", "test_c.py", "--forks", "1")

    # The next file was given out before the last test of the file failed.
    assert results["test_fails"] == "failure"
    assert "stopping after 1 failures" in output

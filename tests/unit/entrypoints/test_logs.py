import asyncio
import json
import logging
import pathlib
import re
import sys

import pytest

import agentmemory_operator
from agentmemory_operator.entrypoints.logs import TEXT_FORMAT, JsonFormatter, TextFormatter, configure_logging
from agentmemory_operator.runtime.object_table import Key
from agentmemory_operator.runtime.work_queue import WorkQueue


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    entry = logging.LogRecord("a.b", logging.WARNING, "f.py", 1, message, args, None)
    vars(entry).update(extra)
    return entry


def test_record_is_one_line_of_json() -> None:
    line = JsonFormatter().format(record("two %s\nlines %s", "words", "\ud800", agent="probe"))

    entry = json.loads(line)

    assert "\n" not in line
    assert (entry["level"], entry["logger"], entry["agent"]) == ("warning", "a.b", "probe")
    assert entry["message"].startswith("two words")


def test_exception_is_part_of_the_line() -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        failed = record("failed")
        failed.exc_info = sys.exc_info()

    entry = json.loads(JsonFormatter().format(failed))

    assert "ValueError: odd" in entry["exception"]


@pytest.mark.parametrize(
    ("logger", "level", "is_shown"),
    [
        ("agentmemory_operator.memories.anything", logging.DEBUG, True),
        ("httpcore2.http11", logging.DEBUG, False),
        ("urllib3.connectionpool", logging.DEBUG, False),
        ("kubernetes.aio.client.rest", logging.DEBUG, False),
        ("kopf._core.reactor.running", logging.INFO, True),
        ("httpx", logging.INFO, False),
    ],
)
def test_debug_level_excludes_vendor_loggers(
    capsys: pytest.CaptureFixture[str], logger: str, level: int, is_shown: bool
) -> None:
    """The debug output of vendor libraries contains headers, bodies and addresses."""
    before = logging.getLogger().handlers[:]
    configure_logging("debug", "text")
    logging.getLogger(logger).log(level, "a header")
    logging.getLogger().handlers[:] = before

    assert ("a header" in capsys.readouterr().err) == is_shown


RECORD_BEGINS = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
FORGED = "2026-01-01 00:00:00,000 INFO    agentmemory_operator.entrypoints.api.edge DELETE /v1/agents/a 204"
# Line breaks of str.splitlines, and terminal controls.
HOSTILE = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\x1b[2K\x1b[1G", "\u202e", "\x7f", "\0"]


@pytest.mark.parametrize("between", HOSTILE, ids=ascii)
@pytest.mark.parametrize("formatter", [TextFormatter(TEXT_FORMAT), JsonFormatter()], ids=["text", "json"])
def test_message_cannot_forge_a_record(formatter: logging.Formatter, between: str) -> None:
    words = f"/v1/agents/a{between}{FORGED}"
    hostile = record("%(method)s %(path)s", {"method": "GET", "path": words}, request={"path": words})
    hostile.name = words

    line = formatter.format(hostile)

    assert line.isprintable()
    assert line.count("\\") >= len(between.replace("[2K", "").replace("[1G", ""))
    assert RECORD_BEGINS.match(line) or json.loads(line)["request"]["path"] == words


@pytest.mark.parametrize("between", HOSTILE, ids=ascii)
def test_exception_cannot_forge_a_record(between: str) -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError(f"odd{between}{FORGED}") from inner
    except ValueError:
        failed = record("failed%s", between, stack_info=f"Stack{between}{FORGED}")
        failed.exc_info = sys.exc_info()

    first, *rest = TextFormatter(TEXT_FORMAT).format(failed).split("\n")

    assert RECORD_BEGINS.match(first)
    assert all(line.startswith("  | ") and line.isprintable() for line in rest)
    assert not [line for line in "\n".join(rest).splitlines() if RECORD_BEGINS.match(line)]
    text = "\n".join(rest)
    # The traceback stays readable line by line, with its cause.
    assert "  | Traceback (most recent call last):\n  |   File " in text
    assert "  | KeyError: 'inner'\n" in text
    assert "  | ValueError: odd" in text
    entry = json.loads(JsonFormatter().format(failed))
    assert f"ValueError: odd{between}{FORGED}" in entry["exception"]


def test_foreign_records_are_escaped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The records include the access log of uvicorn, if it is enabled."""
    # A server of another test in this process may have disabled it.
    for name, value in (("propagate", True), ("disabled", False)):
        monkeypatch.setattr(logging.getLogger("uvicorn.access"), name, value)
        monkeypatch.setattr(logging.getLogger("uvicorn"), name, value)
    before = logging.getLogger().handlers[:]
    configure_logging("info", "text")
    access = logging.getLogger("uvicorn.access")
    access.setLevel(logging.INFO)

    access.info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "GET", f"/x\n{FORGED}", "1.1", 404)
    logging.getLogger().handlers[:] = before
    access.setLevel(logging.WARNING)

    [line] = capsys.readouterr().err.splitlines()
    assert rf"/x\n{FORGED}" in line


async def test_every_line_of_a_pass_names_its_object(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers[:]
    configure_logging("info", "json")
    done = asyncio.Event()

    async def handle(key: Key) -> None:
        logging.getLogger("a.vendor").info("said by somebody else")
        if len(names := [*processed, key.name]) == 2:
            done.set()
        processed[:] = names

    processed: list[str] = []
    queue: WorkQueue[Key] = WorkQueue(handle, share=1)
    running = asyncio.create_task(queue.run())
    for name in ("one", "two"):
        queue.request(Key("AgentMemory", "agents", name))
    await done.wait()
    await asyncio.sleep(0)
    logging.getLogger("a.b").info("outside of any pass")
    running.cancel()
    logging.getLogger().handlers[:] = before

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    reference = {"kind": "AgentMemory", "namespace": "agents"}
    assert [line.get("object") for line in lines] == [reference | {"name": "one"}, reference | {"name": "two"}, None]


def test_every_module_logs_under_its_own_name() -> None:
    package = pathlib.Path(agentmemory_operator.__file__).parent
    loggers = {
        (str(path.relative_to(package)), line)
        for path in package.rglob("*.py")
        for line in path.read_text().splitlines()
        if "getLogger(" in line
    }

    # The transport silences a library whose warnings it repeats.
    exceptions = {"adapters/kubernetes/transport.py", "entrypoints/logs.py"}
    assert {path for path, line in loggers if line != "log = logging.getLogger(__name__)"} == exceptions

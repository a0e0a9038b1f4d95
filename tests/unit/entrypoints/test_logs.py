import asyncio
import json
import logging
import sys

import pytest

from agentmemory_operator.entrypoints.logs import JsonFormatter, configure_logging
from agentmemory_operator.services.objects import Key
from agentmemory_operator.services.workqueue import WorkQueue


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("a.b", logging.WARNING, "f.py", 1, message, args, None)
    vars(made).update(extra)
    return made


def test_a_record_is_one_line_of_json() -> None:
    line = JsonFormatter().format(record("two %s\nlines %s", "words", "\ud800", agent="probe"))

    entry = json.loads(line)

    assert "\n" not in line
    assert (entry["level"], entry["logger"], entry["agent"]) == ("warning", "a.b", "probe")
    assert entry["message"].startswith("two words")


def test_an_exception_is_told_in_the_same_line() -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        failed = record("failed")
        failed.exc_info = sys.exc_info()

    entry = json.loads(JsonFormatter().format(failed))

    assert "ValueError: odd" in entry["exception"]


async def test_every_line_of_a_pass_names_its_object(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers[:]
    configure_logging("info", "json")
    done = asyncio.Event()

    async def handle(key: Key) -> None:
        logging.getLogger("a.vendor").info("said by somebody else")
        if len(passed := [*seen, key.name]) == 2:
            done.set()
        seen[:] = passed

    seen: list[str] = []
    queue: WorkQueue[Key] = WorkQueue(handle, workers=1)
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

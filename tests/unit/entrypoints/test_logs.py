import json
import logging
import sys

from agentmemory_operator.entrypoints.logs import JsonFormatter


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

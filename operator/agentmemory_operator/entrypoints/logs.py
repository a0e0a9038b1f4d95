"""Logging of every long-running command: one line a record on standard error, as JSON or as text."""

import json
import logging
import sys
from dataclasses import asdict
from datetime import UTC, datetime

from agentmemory_operator.services.objects import Key
from agentmemory_operator.services.workqueue import CURRENT
from agentmemory_operator.settings import LogFormat, LogLevel

TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
# What every record carries anyway; the rest came in through `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, what `extra` gave, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of ASCII."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def name_object(record: logging.LogRecord) -> bool:
    """Give a record that a pass writes the reference of its object, as `object`."""
    key = CURRENT.get()
    if isinstance(key, Key):
        record.object = asdict(key)
    return True


def configure_logging(level: LogLevel, format_: LogFormat) -> None:
    """Send every logger's records to standard error; replaces what was set up before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(name_object)
    handler.setFormatter(JsonFormatter() if format_ == "json" else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # What no line shows need not be found out for each.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # These tell each request at INFO, ours included; with URLs, so with user ids. The last one tells each event of a
    # watch.
    for chatty in ("uvicorn", "httpx", "httpx2", "httpcore", "openai", "kopf.objects"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

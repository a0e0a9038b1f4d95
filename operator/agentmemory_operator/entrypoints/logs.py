"""Logging of every long-running command: one line a record on standard error, as JSON or as text.

What others wrote is part of it, so nothing in a record can begin what reads as another: `spec.printable`.
"""

import json
import logging
import sys
from dataclasses import asdict
from datetime import UTC, datetime

from agentmemory_operator.runtime.cache import Key
from agentmemory_operator.runtime.queue import CURRENT
from agentmemory_operator.settings import LogFormat, LogLevel
from agentmemory_operator.spec.printable import printable

# No record begins so; every further line of one does.
CONTINUED = "  | "
TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
OURS = "agentmemory_operator"
# What every record carries anyway; the rest came in through `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class TextFormatter(logging.Formatter):
    """One line, and of an exception or a stack those that follow, each behind `CONTINUED`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record in characters that show."""
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        told = [self.formatException(record.exc_info)] if record.exc_info else []
        told += [self.formatStack(record.stack_info)] if record.stack_info else []
        further = [CONTINUED + printable(line) for block in told for line in block.split("\n")]
        return "\n".join([printable(self.formatMessage(record)), *further])


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, what `extra` gave, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of ASCII."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        # All but ASCII is escaped, and of that what does not show, but for this one.
        return json.dumps(entry, default=str).replace("\x7f", r"\u007f")


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
    handler.setFormatter(JsonFormatter() if format_ == "json" else TextFormatter(TEXT_FORMAT))
    # What libraries say at debug has headers, bodies and addresses in it: no level of ours lets that through.
    own = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(own, logging.INFO), handlers=[handler], force=True)
    logging.getLogger(OURS).setLevel(own)
    # What no line shows need not be found out for each.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # the documented way to leave out who called
    # These tell each request at INFO, ours included; with URLs, so with user ids. The last one tells each event of a
    # watch.
    for chatty in ("uvicorn", "httpx", "httpx2", "httpcore", "openai", "kopf.objects"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

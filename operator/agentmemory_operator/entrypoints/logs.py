"""Logging of the commands on standard error, as JSON or text. A record is one line; in text, an exception adds more.

Records may contain text from other parties. Both formats escape control characters, so that text cannot forge a record.
"""

import json
import logging
import sys
from dataclasses import asdict
from datetime import UTC, datetime

from agentmemory_operator.runtime.object_table import Key
from agentmemory_operator.runtime.work_queue import CURRENT
from agentmemory_operator.settings import LogFormat, LogLevel
from agentmemory_operator.spec.printable import printable

# Prefix of the further lines of a record. No record starts with it.
CONTINUATION_PREFIX = "  | "
TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
ROOT_LOGGER = "agentmemory_operator"
# Attributes that every record has. Others were passed as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class TextFormatter(logging.Formatter):
    """One line per record. Lines of an exception or stack follow it, each prefixed with `CONTINUATION_PREFIX`."""

    def format(self, record: logging.LogRecord) -> str:
        """Render a record with control characters escaped."""
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        blocks = [self.formatException(record.exc_info)] if record.exc_info else []
        blocks += [self.formatStack(record.stack_info)] if record.stack_info else []
        continuation = [CONTINUATION_PREFIX + printable(line) for block in blocks for line in block.split("\n")]
        return "\n".join([printable(self.formatMessage(record)), *continuation])


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, `extra` fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Render a record as one line of ASCII."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        # Escape DEL, the only control character that json.dumps does not escape.
        return json.dumps(entry, default=str).replace("\x7f", r"\u007f")


def name_object(record: logging.LogRecord) -> bool:
    """Add the key of the object that the current pass works on to a record, as its field `object`; return True."""
    key = CURRENT.get()
    if isinstance(key, Key):
        record.object = asdict(key)
    return True


def configure_logging(level: LogLevel, format_: LogFormat) -> None:
    """Send the records of all loggers to standard error, and replace the previous configuration."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(name_object)
    handler.setFormatter(JsonFormatter() if format_ == "json" else TextFormatter(TEXT_FORMAT))
    # Use at least INFO for libraries, whose debug records contain headers, bodies and addresses.
    root_level = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(root_level, logging.INFO), handlers=[handler], force=True)
    logging.getLogger(ROOT_LOGGER).setLevel(root_level)
    # Skip the collection of fields that no format uses.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # the documented way to skip the caller lookup
    # Silence loggers that log each request at INFO, with URLs that contain user ids, or each watch event (kopf).
    for name in ("uvicorn", "httpx", "httpx2", "httpcore", "openai", "kopf.objects"):
        logging.getLogger(name).setLevel(logging.WARNING)

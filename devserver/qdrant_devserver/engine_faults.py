"""Translate errors of the engine into responses of the server."""

import contextlib
from collections.abc import Iterator

from qdrant_devserver.error_answers import engine_failure, malformed, point_missing, wrong_input

_WRONG_INPUT = (
    "Vector dimension error",
    "Not existing vector name",
    "No range index",
    "No appropriate index for faceting",
    "Validation failed",
)


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    """Translate the engine's errors.

    Raises:
        ErrorAnswer: The response of a real server to the same error.
    """
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        raise malformed(str(error)) from error
    except Exception as error:
        message = str(error)
        if type(error) is not Exception:  # The engine raises no subclass.
            raise
        if message.startswith(_WRONG_INPUT):
            raise wrong_input(message) from error
        if message.startswith("No point with id "):
            raise point_missing(message.rsplit(" ", 1)[1]) from error
        raise engine_failure(message) from error

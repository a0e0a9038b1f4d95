"""Parts of requests that were written as JSON before."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JsonText:
    """JSON that goes into a request as it stands."""

    text: str

"""Error responses with the status codes and messages of a real server."""

from typing import Final

NOT_BUILT: Final = 501


class ErrorAnswer(Exception):
    """An error response: HTTP status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def malformed(reason: str) -> ErrorAnswer:
    """Build the response to a body that cannot be deserialised."""
    return ErrorAnswer(400, f"Format error in JSON body: {reason}")


def malformed_parameter(reason: str) -> ErrorAnswer:
    """Build the response to a query parameter that cannot be deserialised."""
    return ErrorAnswer(400, f"Deserialize error in query parameters: {reason}")


def invalid(field: str, reason: str) -> ErrorAnswer:
    """Build the response to a value outside its range."""
    return ErrorAnswer(422, f"Validation error in JSON body: [{field}: {reason}]")


def wrong_input(message: str) -> ErrorAnswer:
    """Build the response to a request that contradicts the stored state."""
    return ErrorAnswer(400, f"Wrong input: {message}")


def not_found(message: str) -> ErrorAnswer:
    """Build the response to a request for something that does not exist."""
    return ErrorAnswer(404, f"Not found: {message}")


def conflict(message: str) -> ErrorAnswer:
    """Build the response to a request for a name that is taken."""
    return ErrorAnswer(409, f"Wrong input: {message}")


def collection_missing(name: str) -> ErrorAnswer:
    """Build the response to a request for an unknown collection."""
    return not_found(f"Collection `{name}` doesn't exist!")


def vector_missing(name: str) -> ErrorAnswer:
    """Build the response to a request with an unknown vector name."""
    return wrong_input(f"Not existing vector name error: {name}")


def point_missing(point: object) -> ErrorAnswer:
    """Build the response to an update of a point that does not exist."""
    return not_found(f"No point with id {point} found")


def not_built(feature: str) -> ErrorAnswer:
    """Build the response to a request for a feature of Qdrant that this server lacks."""
    return ErrorAnswer(NOT_BUILT, f"Not built in the development server: {feature}. Use a real Qdrant server for it.")


def forbidden(message: str) -> ErrorAnswer:
    """Build the response to a request that its token does not allow."""
    return ErrorAnswer(403, f"Forbidden: {message}")


def forbidden_in_strict_mode(message: str, solution: str) -> ErrorAnswer:
    """Build the response to a request that the collection's strict mode forbids."""
    return ErrorAnswer(400, f"Bad request: {message}. Help: {solution}")


def engine_failure(message: str) -> ErrorAnswer:
    """Build the response to an error inside the engine."""
    return ErrorAnswer(500, f"Service internal error: {message}")

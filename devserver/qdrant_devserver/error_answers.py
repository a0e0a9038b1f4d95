"""Say what is wrong with a request, in the server's own words and status codes."""

from typing import Final

NOT_BUILT: Final = 501


class ErrorAnswer(Exception):
    """An answer other than success: its HTTP status and its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def malformed(reason: str) -> ErrorAnswer:
    """The answer to a body that does not deserialise."""
    return ErrorAnswer(400, f"Format error in JSON body: {reason}")


def malformed_parameter(reason: str) -> ErrorAnswer:
    """The answer to a query parameter that does not deserialise."""
    return ErrorAnswer(400, f"Deserialize error in query parameters: {reason}")


def invalid(field: str, reason: str) -> ErrorAnswer:
    """The answer to a value outside its range."""
    return ErrorAnswer(422, f"Validation error in JSON body: [{field}: {reason}]")


def wrong_input(message: str) -> ErrorAnswer:
    """The answer to a request that contradicts what is stored."""
    return ErrorAnswer(400, f"Wrong input: {message}")


def not_found(message: str) -> ErrorAnswer:
    """The answer to a request for something absent."""
    return ErrorAnswer(404, f"Not found: {message}")


def conflict(message: str) -> ErrorAnswer:
    """The answer to a name that is taken."""
    return ErrorAnswer(409, f"Wrong input: {message}")


def collection_missing(name: str) -> ErrorAnswer:
    """The answer to a request for an unknown collection."""
    return not_found(f"Collection `{name}` doesn't exist!")


def vector_missing(name: str) -> ErrorAnswer:
    """The answer to a request that names an unknown vector."""
    return wrong_input(f"Not existing vector name error: {name}")


def point_missing(point: object) -> ErrorAnswer:
    """The answer to an update of a point that is not there."""
    return not_found(f"No point with id {point} found")


def not_built(feature: str) -> ErrorAnswer:
    """The answer to a feature of Qdrant that this server lacks."""
    return ErrorAnswer(NOT_BUILT, f"Not built in the development server: {feature}. Use a real Qdrant server for it.")


def forbidden(message: str) -> ErrorAnswer:
    """The answer to a request that its token does not allow."""
    return ErrorAnswer(403, f"Forbidden: {message}")


def forbidden_in_strict_mode(message: str, solution: str) -> ErrorAnswer:
    """The answer to a request that the collection's strict mode refuses."""
    return ErrorAnswer(400, f"Bad request: {message}. Help: {solution}")


def engine_failure(message: str) -> ErrorAnswer:
    """The answer to a fault inside the engine."""
    return ErrorAnswer(500, f"Service internal error: {message}")

import inspect

import pytest

from agentmemory_operator import errors
from agentmemory_operator.entrypoints.api.problems import PROBLEMS, problem_of
from agentmemory_operator.error_reasons import ERROR_REASONS
from agentmemory_operator.errors import (
    AgentClosed,
    AgentMemoryError,
    CollectionDeleted,
    CollectionMoved,
    Conflict,
    DecryptionFailed,
    EmbedderFailed,
    EmbedderUnavailable,
    FieldError,
    KeysDamaged,
    KeysUnavailable,
    LeadershipLost,
    NotFound,
    NotOwned,
    OutcomeUnknown,
    RecoveryOutcomeUnknown,
    RequestInvalid,
    RerankerUnavailable,
    ResponseTimeout,
    RouteNotFound,
    SecretMissing,
    SecretNotUsable,
    SpecInvalid,
    StoreRejected,
    StoreUnavailable,
    TlsVerificationFailed,
)


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (RequestInvalid([FieldError("a", "b")]), 422, None),
        (NotFound("x"), 404, None),
        (Conflict("x"), 409, None),
        (StoreRejected(400, "x"), 502, None),
        (SpecInvalid("InvalidSpec", "x"), 503, "30"),
        (SecretMissing("ns", "name", "key"), 503, "30"),
        (SecretNotUsable("x"), 503, "30"),
        (NotOwned("SlugTaken", "x"), 503, "30"),
        (StoreUnavailable("x"), 503, "1"),
        (StoreUnavailable("x", retry_after_s=0), 503, "1"),
        (TlsVerificationFailed("x"), 503, "1"),
        (AgentClosed("x", retry_after_s=10), 503, "10"),
        (EmbedderUnavailable("x", retry_after_s=2.1), 503, "3"),
        (KeysUnavailable("x", retry_after_s=2), 503, "2"),
        (OutcomeUnknown("x"), 504, "1"),
        (AgentMemoryError("x"), 500, None),
    ],
)
def test_each_error_has_its_status(error: AgentMemoryError, status: int, retry_after: str | None) -> None:
    problem = problem_of(error)

    assert (problem.type.status, problem.headers.get("Retry-After")) == (status, retry_after)


def test_server_message_is_appended_to_the_detail() -> None:
    refusal = StoreRejected(400, "Qdrant answered 400")
    refusal.server_message = "Index required but not found"

    assert problem_of(refusal).detail == "Qdrant answered 400: Index required but not found"


def test_every_error_has_a_reason_or_inherits_one() -> None:
    raised = {cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, AgentMemoryError)}

    # These inherit the reason of their base class.
    as_parent = {
        SecretMissing,
        SecretNotUsable,
        ResponseTimeout,
        CollectionDeleted,
        CollectionMoved,
        RecoveryOutcomeUnknown,
        RouteNotFound,
        KeysDamaged,
    }
    as_parent |= {EmbedderFailed, RerankerUnavailable, LeadershipLost, DecryptionFailed}
    assert raised - ERROR_REASONS.keys() == as_parent
    problems = {problem.name for problem in PROBLEMS}
    assert {name for _, name in ERROR_REASONS.values()} <= problems


def test_names_are_unique() -> None:
    assert len({problem.name for problem in PROBLEMS}) == len(PROBLEMS)


def test_invalid_unicode_is_replaced() -> None:
    problem = problem_of(RequestInvalid([FieldError("a\ud800", "b\udfff")]))

    assert problem.body("id")["errors"] == [{"field": "a?", "message": "b?"}]

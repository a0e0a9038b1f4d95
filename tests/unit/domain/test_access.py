"""Who may do what: each verb by itself, and nobody who is not named."""

import pytest

from agentmemory_operator.domain.access import ANYBODY, Caller, Subject, Verb, verbs_of

READ, WRITE = frozenset({Verb.READ}), frozenset({Verb.WRITE})
SUBJECTS = (Subject("agents", "reader", READ), Subject("agents", "writer", WRITE))


@pytest.mark.parametrize(
    ("caller", "verbs"),
    [
        (Caller("agents", "reader"), READ),
        (Caller("agents", "writer"), WRITE),
        (Caller("other", "reader"), frozenset()),
        (Caller("agents", "nobody"), frozenset()),
        (Caller("", ""), frozenset()),
        (ANYBODY, frozenset(Verb)),
    ],
)
def test_a_caller_may_what_the_subject_of_its_namespace_and_name_may(caller: Caller, verbs: frozenset[Verb]) -> None:
    assert verbs_of(caller, SUBJECTS) == verbs


def test_without_subjects_nobody_may_anything() -> None:
    assert verbs_of(Caller("agents", "reader"), ()) == frozenset()

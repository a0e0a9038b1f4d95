"""Rights of callers: each verb by itself, none without a subject."""

import pytest

from agentmemory_operator.spec.caller_rights import (
    UNBOUNDED_CALLER,
    Caller,
    Delegation,
    Subject,
    Verb,
    is_well_formed,
    scopes_of,
    verbs_of,
)

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
        (UNBOUNDED_CALLER, frozenset(Verb)),
    ],
)
def test_caller_has_the_verbs_of_its_subject(caller: Caller, verbs: frozenset[Verb]) -> None:
    assert verbs_of(caller, SUBJECTS) == verbs


def test_without_subjects_no_caller_has_verbs() -> None:
    assert verbs_of(Caller("agents", "reader"), ()) == frozenset()


SHARING = (Subject("agents", "reader", READ, frozenset({"global"})), Subject("agents", "writer", WRITE))


@pytest.mark.parametrize(
    ("caller", "allowed"),
    [
        (Caller("agents", "reader"), ["ada", "global"]),
        (Caller("agents", "writer"), ["ada"]),
        (Caller("other", "reader"), []),
        (UNBOUNDED_CALLER, ["ada", "global", "group:team", "group:"]),
    ],
)
def test_scope_is_allowed_to_subjects_that_list_it(caller: Caller, allowed: list[str]) -> None:
    scopes = scopes_of(caller, SHARING)

    assert [user for user in ("ada", "global", "group:team", "group:") if scopes.allows(user)] == allowed


BINDING = (
    Subject("agents", "kiosk", READ | {Verb.DELEGATE}, frozenset({"group:team"}), frozenset({"ada", "bob"})),
    Subject("agents", "front", frozenset(Verb), frozenset({"global"})),
    Subject("agents", "reader", READ),
)


def delegated(name: str, user_id: str, *verbs: Verb) -> Caller:
    return Caller("agents", name, delegation=Delegation("bot", "agents", "uid", user_id, frozenset(verbs)))


@pytest.mark.parametrize(
    ("caller", "allowed"),
    [
        (Caller("agents", "kiosk"), ["ada", "bob", "group:team"]),
        (Caller("agents", "front"), ["ada", "bob", "eve", "global"]),
        (delegated("kiosk", "ada"), ["ada"]),
        (delegated("kiosk", "group:team"), ["group:team"]),
        (delegated("kiosk", "eve"), []),
        (delegated("kiosk", "global"), []),
        (delegated("front", "eve"), ["eve"]),
        (delegated("nobody", "ada"), []),
    ],
)
def test_user_is_allowed_to_subjects_bound_to_it(caller: Caller, allowed: list[str]) -> None:
    scopes = scopes_of(caller, BINDING)

    assert [user for user in ("ada", "bob", "eve", "global", "group:team") if scopes.allows(user)] == allowed


@pytest.mark.parametrize(
    ("caller", "verbs"),
    [
        (delegated("front", "ada", Verb.READ, Verb.WRITE), {Verb.READ, Verb.WRITE}),
        (delegated("kiosk", "ada", Verb.READ, Verb.WRITE), {Verb.READ}),
        (delegated("reader", "ada", Verb.READ), set()),
        (delegated("nobody", "ada", Verb.READ), set()),
    ],
    ids=["all of them", "those of its subject", "a subject without delegate", "no subject"],
)
def test_user_token_is_limited_by_its_subject(caller: Caller, verbs: set[Verb]) -> None:
    assert verbs_of(caller, BINDING) == verbs


@pytest.mark.parametrize(
    ("user_id", "is_valid"),
    [
        ("ada", True),
        ("Global", True),
        ("a group:x", True),
        ("global", True),
        ("group:team-1.a_B", True),
        ("group:" + "x" * 63, True),
        ("group:", False),
        ("group: team", False),
        ("group:-team", False),
        ("group:a/b", False),
        ("group:team\n", False),
        ("group:" + "x" * 64, False),
    ],
)
def test_user_id_that_looks_like_a_scope_is_checked(user_id: str, is_valid: bool) -> None:
    assert is_well_formed(user_id) == is_valid

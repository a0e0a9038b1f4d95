"""Signing and validation of user tokens."""

import base64
import json
from collections.abc import Callable
from typing import Any

import jwt
import pytest

from agentmemory_operator.adapters.user_tokens import (
    LEEWAY_S,
    MAX_TOKEN_CHARS,
    PREFIX,
    JwtUserTokens,
    new_key,
    parse_key,
)
from agentmemory_operator.errors import Unauthenticated
from agentmemory_operator.ports.access import SigningKey
from agentmemory_operator.spec.caller_rights import Caller, Delegation, Verb

NOW_S = 1_800_000_000
FORM = JwtUserTokens()
HELD = Caller(
    "agents",
    "front",
    delegation=Delegation("bot", "agents", "uid-1", "ada", frozenset({Verb.READ, Verb.WRITE})),
)


def make_key() -> SigningKey:
    key = parse_key(new_key())
    assert key is not None
    return key


KEY = make_key()


def token_of(caller: Caller = HELD, *, key: SigningKey = KEY, now_s: int = NOW_S, lives_s: int = 3600) -> str:
    return FORM.sign(key, caller, now_s=now_s, expires_at_s=now_s + lives_s)


def changed(**changes: Any) -> str:
    """Return a signed token with changed claims; None removes a claim."""
    claims = jwt.decode(token_of().removeprefix(PREFIX), options={"verify_signature": False}) | changes
    claims = {name: value for name, value in claims.items() if value is not None}
    return PREFIX + jwt.encode(claims, KEY.secret, algorithm="HS256", headers={"kid": KEY.id})


@pytest.mark.parametrize("user", ["ada", "group:team", "Ä 💡", "💡" * 256, '"\\' * 128])
def test_sign_and_read_round_trip(user: str) -> None:
    caller = Caller("n" * 63, "s" * 253, delegation=Delegation("bot", "n" * 63, "uid", user, frozenset({Verb.READ})))
    token = token_of(caller)

    assert FORM.read(token, KEY, now_s=NOW_S) == caller
    assert (FORM.is_user_token(token), FORM.key_id(token)) == (True, KEY.id)
    assert len(token) <= MAX_TOKEN_CHARS


@pytest.mark.parametrize(
    ("age_s", "is_believed"),
    [(-LEEWAY_S - 1, False), (-LEEWAY_S, True), (0, True), (3600 + LEEWAY_S - 1, True), (3600 + LEEWAY_S, False)],
)
def test_validity_allows_clock_leeway(age_s: int, is_believed: bool) -> None:
    token = token_of()

    try:
        FORM.read(token, KEY, now_s=NOW_S + age_s)
    except Unauthenticated:
        assert not is_believed
    else:
        assert is_believed


@pytest.mark.parametrize(
    "make",
    [
        lambda: token_of(lives_s=3601),
        lambda: token_of(key=make_key()),
        lambda: changed(aud="agentmemory"),
        lambda: changed(iss="somebody"),
        lambda: changed(exp=None),
        lambda: changed(iat=None),
        lambda: changed(sub=None),
        lambda: token_of().removeprefix(PREFIX)[:-3],
        lambda: PREFIX,
        lambda: PREFIX + "a" * MAX_TOKEN_CHARS,
        lambda: PREFIX + "[" * 5000,
        lambda: PREFIX + "{}.{}.{}",
    ],
    ids=[
        "long",
        "another key",
        "aud",
        "iss",
        "no end",
        "no begin",
        "nobody",
        "cut",
        "empty",
        "large",
        "deep",
        "braces",
    ],
)
def test_malformed_token_is_rejected(make: Callable[[], str]) -> None:
    token = make()

    FORM.key_id(token)
    with pytest.raises(Unauthenticated) as told:
        FORM.read(token, KEY, now_s=NOW_S)
    assert token[8:] not in str(told.value) or not token[8:]


@pytest.mark.parametrize("algorithm", ["none", "HS384", "HS512"])
def test_other_algorithms_are_rejected(algorithm: str) -> None:
    claims = jwt.decode(token_of().removeprefix(PREFIX), options={"verify_signature": False})
    secret = None if algorithm == "none" else KEY.secret * 2
    same = SigningKey(KEY.id, KEY.secret * 2)

    with pytest.raises(Unauthenticated):
        FORM.read(PREFIX + jwt.encode(claims, secret, algorithm=algorithm), same, now_s=NOW_S)


def test_unknown_verbs_and_delegate_are_ignored() -> None:
    found = FORM.read(changed(verbs=["read", "fly", "delegate"]), KEY, now_s=NOW_S)

    assert found.delegation is not None
    assert found.delegation.verbs == {Verb.READ}


def test_service_account_token_is_no_user_token() -> None:
    body = base64.urlsafe_b64encode(json.dumps({"sub": "x"}).encode()).decode()

    assert [FORM.is_user_token(token) for token in (f"e30.{body}.x", "", "AMU_x", " amu_x")] == [False] * 4


def test_key_id_and_repr_hide_the_secret() -> None:
    assert KEY.id not in base64.b64encode(KEY.secret).decode()
    assert "secret" not in repr(KEY)


@pytest.mark.parametrize("text", ["", "x", "a" * 43, base64.b64encode(b"x" * 31).decode(), "ä" * 44, "!" * 44])
def test_short_text_is_no_key(text: str) -> None:
    assert parse_key(text) is None

"""Token reviews: local rejection of unsuitable tokens, and validation of the API server's response."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio import client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentmemory_operator.adapters.kubernetes.token_reviews import TOKEN_REVIEWS, KubernetesTokenReviews
from agentmemory_operator.errors import TransientError
from agentmemory_operator.spec.caller_rights import Caller
from tests.support.web.http_server import serve

SOON = 4_102_444_800  # the year 2100: a constant, equal in every process that collects these tests


def part(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def token(claims: str | dict[str, Any], header: str = '{"alg":"ES256","typ":"JWT"}') -> str:
    body = claims if isinstance(claims, str) else json.dumps(claims)
    return ".".join((part(header), part(body), part("signature")))


UNSUITABLE, WRONG_AUDIENCE = "does not belong to a ServiceAccount", "not for the audience agentmemory"


@pytest.fixture
async def reviews() -> AsyncIterator[KubernetesTokenReviews]:
    made = KubernetesTokenReviews(client.Configuration(host="http://127.0.0.1:9"))
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        ("", UNSUITABLE),
        ("a.b.c", UNSUITABLE),
        ("opaque", UNSUITABLE),
        ("\x00.\x00.\x00", UNSUITABLE),
        (token("no object"), UNSUITABLE),
        (token("[]"), UNSUITABLE),
        (token("[" * 20_000), UNSUITABLE),
        (token({}), UNSUITABLE),
        (token({"aud": ["agentmemory"]}), UNSUITABLE),
        (token({"aud": ["agentmemory"], "exp": "never"}), UNSUITABLE),
        (token('{"aud": "agentmemory", "exp": 1e999}'), UNSUITABLE),
        (token('{"aud": "agentmemory", "exp": NaN}'), UNSUITABLE),
        (token({"aud": ["agentmemory"], "exp": 1}), "the token has expired"),
        (token({"exp": SOON}), WRONG_AUDIENCE),
        (token({"aud": ["other"], "exp": SOON}), WRONG_AUDIENCE),
        (token({"aud": {"agentmemory": 1}, "exp": SOON}), WRONG_AUDIENCE),
    ],
)
async def test_unsuitable_token_is_rejected_locally(reviews: KubernetesTokenReviews, sent: str, refusal: str) -> None:
    reviewed = await reviews.review(sent)

    assert reviewed.caller is None
    assert refusal in reviewed.refusal


@pytest.mark.parametrize("audience", ["agentmemory", ["other", "agentmemory"]])
async def test_unreachable_api_server_is_transient(
    reviews: KubernetesTokenReviews, audience: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sent = token({"aud": audience, "exp": SOON})

    with pytest.raises(TransientError, match="cannot be verified at the moment") as raised:
        await reviews.review(sent)

    assert raised.value.retry_after_s > 0
    assert "cannot check tokens: Kubernetes cannot be reached" in caplog.text
    assert sent not in caplog.text


async def test_review_must_confirm_the_audience() -> None:
    """An API server without audience support checks its own audience, not that of the token."""
    user = {"username": "system:serviceaccount:agents:bot"}
    good = {"authenticated": True, "audiences": ["agentmemory"]}
    bad: list[dict[str, Any]] = [
        {"authenticated": True, "audiences": ["https://kubernetes.default.svc"]},
        {"authenticated": True, "audiences": []},
        {"authenticated": True},
        {"authenticated": False, "audiences": ["agentmemory"]},
        {"authenticated": "true", "audiences": ["agentmemory"]},
    ]
    answers = iter([good, *bad])
    asked: list[Any] = []

    async def answer(request: Request) -> JSONResponse:
        asked.append((await request.json())["spec"]["audiences"])
        return JSONResponse({"status": {"user": user} | next(answers)}, status_code=201)

    with serve(Starlette(routes=[Route(TOKEN_REVIEWS, answer, methods=["POST"])])) as url:
        reviews = KubernetesTokenReviews(client.Configuration(host=url))
        accepted, *rejected = [await reviews.review(token({"aud": ["agentmemory"], "exp": SOON})) for _ in [good, *bad]]
        await reviews.close()

    assert asked == [["agentmemory"]] * 6
    assert accepted.caller == Caller("agents", "bot")
    assert [(review.caller, "invalid or has been revoked" in review.refusal) for review in rejected] == [
        (None, True)
    ] * 5

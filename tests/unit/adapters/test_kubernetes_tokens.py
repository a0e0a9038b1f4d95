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


@pytest.fixture
async def reviews() -> AsyncIterator[KubernetesTokenReviews]:
    made = KubernetesTokenReviews(client.Configuration(host="http://127.0.0.1:9"))
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        ("", "does not belong to a ServiceAccount"),
        ("a.b.c", "does not belong to a ServiceAccount"),
        ("opaque", "does not belong to a ServiceAccount"),
        ("\x00.\x00.\x00", "does not belong to a ServiceAccount"),
        (token("no object"), "does not belong to a ServiceAccount"),
        (token("[]"), "does not belong to a ServiceAccount"),
        (token("[" * 20_000), "does not belong to a ServiceAccount"),
        (token({}), "does not belong to a ServiceAccount"),
        (token({"aud": ["agentmemory"]}), "does not belong to a ServiceAccount"),
        (token({"aud": ["agentmemory"], "exp": "never"}), "does not belong to a ServiceAccount"),
        (token('{"aud": "agentmemory", "exp": 1e999}'), "does not belong to a ServiceAccount"),
        (token('{"aud": "agentmemory", "exp": NaN}'), "does not belong to a ServiceAccount"),
        (token({"aud": ["agentmemory"], "exp": 1}), "the token has expired"),
        (token({"exp": SOON}), "not for the audience agentmemory"),
        (token({"aud": ["other"], "exp": SOON}), "not for the audience agentmemory"),
        (token({"aud": {"agentmemory": 1}, "exp": SOON}), "not for the audience agentmemory"),
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


@pytest.mark.parametrize(
    ("status", "is_good"),
    [
        ({"authenticated": True, "audiences": ["agentmemory"]}, True),
        ({"authenticated": True, "audiences": ["https://kubernetes.default.svc"]}, False),
        ({"authenticated": True, "audiences": []}, False),
        ({"authenticated": True}, False),
        ({"authenticated": False, "audiences": ["agentmemory"]}, False),
        ({"authenticated": "true", "audiences": ["agentmemory"]}, False),
    ],
)
async def test_review_must_confirm_the_audience(status: dict[str, Any], is_good: bool) -> None:
    """An API server without audience support checks its own audience, not that of the token."""
    user = {"username": "system:serviceaccount:agents:bot"}
    asked: list[Any] = []

    async def answer(request: Request) -> JSONResponse:
        asked.append(await request.json())
        return JSONResponse({"status": {"user": user} | status}, status_code=201)

    with serve(Starlette(routes=[Route(TOKEN_REVIEWS, answer, methods=["POST"])])) as url:
        reviews = KubernetesTokenReviews(client.Configuration(host=url))
        reviewed = await reviews.review(token({"aud": ["agentmemory"], "exp": SOON}))
        await reviews.close()

    assert asked[0]["spec"]["audiences"] == ["agentmemory"]
    assert reviewed.caller == (Caller("agents", "bot") if is_good else None)
    assert is_good or "invalid or has been revoked" in reviewed.refusal

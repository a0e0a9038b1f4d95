"""What cannot be a token for us is refused without asking the API server; here there is none to ask."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio import client

from agentmemory_operator.adapters.kubernetes_tokens import KubernetesTokenReviews
from agentmemory_operator.errors import TransientError

SOON = 4_102_444_800  # the year 2100: the same in each process that collects these tests


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
        ("", "no ServiceAccount's"),
        ("a.b.c", "no ServiceAccount's"),
        ("opaque", "no ServiceAccount's"),
        ("\x00.\x00.\x00", "no ServiceAccount's"),
        (token("no object"), "no ServiceAccount's"),
        (token("[]"), "no ServiceAccount's"),
        (token("[" * 20_000), "no ServiceAccount's"),
        (token({}), "no ServiceAccount's"),
        (token({"aud": ["agentmemory"]}), "no ServiceAccount's"),
        (token({"aud": ["agentmemory"], "exp": "never"}), "no ServiceAccount's"),
        (token('{"aud": "agentmemory", "exp": 1e999}'), "no ServiceAccount's"),
        (token('{"aud": "agentmemory", "exp": NaN}'), "no ServiceAccount's"),
        (token({"aud": ["agentmemory"], "exp": 1}), "the token has expired"),
        (token({"exp": SOON}), "not for the audience agentmemory"),
        (token({"aud": ["other"], "exp": SOON}), "not for the audience agentmemory"),
        (token({"aud": {"agentmemory": 1}, "exp": SOON}), "not for the audience agentmemory"),
    ],
)
async def test_what_is_no_token_for_us_is_refused_unasked(
    reviews: KubernetesTokenReviews, sent: str, refusal: str
) -> None:
    reviewed = await reviews.review(sent)

    assert reviewed.caller is None
    assert refusal in reviewed.refusal


@pytest.mark.parametrize("audience", ["agentmemory", ["other", "agentmemory"]])
async def test_without_an_api_server_a_token_for_us_is_neither_good_nor_bad(
    reviews: KubernetesTokenReviews, audience: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sent = token({"aud": audience, "exp": SOON})

    with pytest.raises(TransientError, match="cannot be checked for now") as told:
        await reviews.review(sent)

    assert told.value.retry_after_s > 0
    assert "tokens cannot be checked: Kubernetes cannot be reached" in caplog.text
    assert sent not in caplog.text

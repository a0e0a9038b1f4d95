"""ServiceAccount tokens, validated by the API server (TokenReview)."""

import json
import logging
from typing import TYPE_CHECKING

from agentmemory_operator.adapters.kubernetes.transport import Configuration, KubernetesTransport, mapped_errors
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.caller_rights import AUDIENCE, Caller, TokenReviewResult

# Import `jwt` on first use, because it imports all of cryptography.
if TYPE_CHECKING:
    from jwt.types import Options

log = logging.getLogger(__name__)

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
SERVICE_ACCOUNT = "system:serviceaccount:"
# Check only the expiry here, without the API server's tolerance of a minute. Only that server can check the signature.
UNVERIFIED_OPTIONS: "Options" = {"verify_signature": False, "verify_exp": True, "require": ["exp"]}
REVIEW_TIMEOUT_S = 5.0
RETRY_AFTER_S = 2.0


class KubernetesTokenReviews:
    """Implements ports.TokenReviews. A call to the API server that takes over 5 s raises TransientError."""

    def __init__(self, configuration: Configuration) -> None:
        self._transport = KubernetesTransport(configuration)

    async def close(self) -> None:
        """Close the connections to the API server, which takes 0.1 s."""
        await self._transport.close()

    async def review(self, token: str) -> TokenReviewResult:
        """Validate a token. One that is expired, malformed or for another audience is refused without a call.

        Raises:
            TransientError: If the API server is unavailable or rejects the call. The cause is only logged, because it
                reveals the permissions of this process.
        """
        import jwt

        try:
            claims = jwt.decode(token, options=UNVERIFIED_OPTIONS)
        except jwt.ExpiredSignatureError:
            return TokenReviewResult(refusal="the token has expired: request a new one")
        except (jwt.InvalidTokenError, OverflowError, RecursionError, ValueError):
            return TokenReviewResult(refusal="the token does not belong to a ServiceAccount")
        audiences = claims.get("aud")
        if AUDIENCE not in (audiences if isinstance(audiences, list) else [audiences]):
            return TokenReviewResult(refusal=f"the token is not for the audience {AUDIENCE}: request one with it")
        status = await self._request_review(token)
        name = str((status.get("user") or {}).get("username", ""))
        # Require the audience, because an API server without support for audiences validates the token for its own.
        if status.get("authenticated") is not True or AUDIENCE not in (status.get("audiences") or ()):
            return TokenReviewResult(refusal="the token is invalid or has been revoked: request a new one")
        if not name.startswith(SERVICE_ACCOUNT):
            return TokenReviewResult(refusal="the token does not belong to a ServiceAccount")
        namespace, _, account = name.removeprefix(SERVICE_ACCOUNT).partition(":")
        return TokenReviewResult(caller=Caller(namespace, account), expires_at_s=float(claims["exp"]))

    async def _request_review(self, token: str) -> Json:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        try:
            response = await self._transport.send("POST", TOKEN_REVIEWS, body, timeout_s=REVIEW_TIMEOUT_S)
            with mapped_errors():
                status: Json = json.loads(await response.read())["status"]
        except AgentMemoryError as exc:
            # Log the cause instead of passing it to the caller, because it reveals the permissions of this process.
            log.warning("cannot check tokens: %s", exc)
            raise TransientError("tokens cannot be verified at the moment", retry_after_s=RETRY_AFTER_S) from exc
        return status

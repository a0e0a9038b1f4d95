"""Tokens of ServiceAccounts on a real API server: good ones, and each kind that must not pass."""

import time
from dataclasses import dataclass
from typing import Any

import jwt

from agentmemory_operator.domain.access import AUDIENCE
from tests.support.controlplane import ControlPlane

UNVERIFIED = {"verify_signature": False}


@dataclass(frozen=True, slots=True)
class Account:
    """A ServiceAccount that exists."""

    control_plane: ControlPlane
    namespace: str
    name: str

    @classmethod
    def create(cls, control_plane: ControlPlane, namespace: str, name: str) -> "Account":
        """Create it; one that is there is no error."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        answer = control_plane.http.post(path, json={"metadata": {"name": name}})
        assert answer.status_code in (201, 409), answer.text
        return cls(control_plane, namespace, name)

    def subject(self, *verbs: str) -> dict[str, Any]:
        """Return its entry in `spec.access.subjects`."""
        return {"kind": "ServiceAccount", "namespace": self.namespace, "name": self.name, "verbs": [*verbs]}

    def token(self, *audiences: str) -> str:
        """Return a fresh token for the API, or for other audiences."""
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self.name}/token"
        spec = {"expirationSeconds": 600, "audiences": [*audiences] or [AUDIENCE]}
        answer = self.control_plane.http.post(path, json={"spec": spec}).raise_for_status()
        return str(answer.json()["status"]["token"])

    def token_for(self, *, seconds: int) -> str:
        """Return a token, signed as the API server signs, that ends so many seconds from now."""
        now, token = int(time.time()), self.token()
        claims = jwt.decode(token, options=UNVERIFIED)
        claims |= {"iat": now - 3600, "nbf": now - 3600, "exp": now + seconds}
        key = (self.control_plane.folder / "service-account.key").read_text()
        return jwt.encode(claims, key, algorithm="ES256", headers={"kid": jwt.get_unverified_header(token)["kid"]})

    def forged_by(self, other: "Account") -> str:
        """Return this account's claims over the other's signature."""
        head, claims, _ = self.token().split(".")
        return ".".join((head, claims, other.token().rsplit(".", 1)[1]))

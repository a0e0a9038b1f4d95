"""A platform as shipped, with tenants. Each tenant calls the API server and the retrieval API with its own account."""

import contextlib
import pathlib
import secrets
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import jwt
from jwt.types import Options

from agentmemory_operator.spec.caller_rights import AUDIENCE
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import (
    API_NAMESPACE_FLAGS,
    NAMESPACE,
    OPERATOR_NAMESPACE_FLAGS,
    RBAC,
    container_of,
    install,
)
from tests.support.cluster.operators import LEADING
from tests.support.cluster.workspace import AGENT, CONNECTION, MERGE, SIZE, Workspace
from tests.support.patience import wait_until
from tests.support.programs import Program, running, start_qdrant
from tests.support.spec.documents import Document
from tests.support.web.http_server import check_success

# Rights of a tenant in its namespace: the shipped role, or, carelessly, all kinds with their statuses.
Rights = Literal["edit", "everything"]
BOTH: tuple[Rights, ...] = ("edit", "everything")
GROUP = API_VERSION.partition("/")[0]
EVERYTHING = [{"apiGroups": [GROUP], "resources": ["*"], "verbs": ["*"]}]
APPLY = {"content-type": "application/apply-patch+yaml"}
# Audience of tokens for the API server.
KUBERNETES = "https://kubernetes.default.svc"
SERVED_WITHIN_S, BOUND_WITHIN_S = 10.0, 5.0
# Unique per test process, so a leak is unambiguous.
QDRANT_KEY = f"{secrets.token_hex(16)}-of-the-platform"
KEY_REF = {"name": "qdrant-key", "key": "api-key"}
VECTOR = [1.0] * SIZE
UNVERIFIED: Options = {"verify_signature": False}


@dataclass(frozen=True, slots=True)
class Account:
    """An existing ServiceAccount."""

    control_plane: ControlPlane
    namespace: str
    name: str

    @classmethod
    def create(cls, control_plane: ControlPlane, namespace: str, name: str) -> "Account":
        """Create the account, if it does not exist."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        answer = control_plane.http.post(path, json={"metadata": {"name": name}})
        assert answer.status_code in (201, 409), answer.text
        return cls(control_plane, namespace, name)

    def subject(self, *verbs: str) -> dict[str, Any]:
        """Build its entry in `spec.access.subjects`."""
        return {"kind": "ServiceAccount", "namespace": self.namespace, "name": self.name, "verbs": [*verbs]}

    def token(self, *audiences: str) -> str:
        """Return a new token for the API, or for other audiences."""
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self.name}/token"
        spec = {"expirationSeconds": 600, "audiences": [*audiences] or [AUDIENCE]}
        answer = check_success(self.control_plane.http.post(path, json={"spec": spec}))
        return str(answer.json()["status"]["token"])

    def token_for(self, *, seconds: int) -> str:
        """Return a token that expires `seconds` from now, signed with the API server's key."""
        now, token = int(time.time()), self.token()
        claims = jwt.decode(token, options=UNVERIFIED)
        claims |= {"iat": now - 3600, "nbf": now - 3600, "exp": now + seconds}
        key = (self.control_plane.folder / "service-account.key").read_text()
        return jwt.encode(claims, key, algorithm="ES256", headers={"kid": jwt.get_unverified_header(token)["kid"]})

    def forged_by(self, other: "Account") -> str:
        """Return this account's claims with the other account's signature."""
        head, claims, _ = self.token().split(".")
        return ".".join((head, claims, other.token().rsplit(".", 1)[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Operator and API with the accounts of examples/install, and a Qdrant server that requires a key.

    Attributes:
        ports: Port of the container -> port of the process; 8080 is the API's, 8081 the operator's.
    """

    control_plane: ControlPlane
    operator: Program
    api: Program
    qdrant: Program
    ports: Mapping[int, int]
    qdrant_url: str

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.ports[8080]}"

    @property
    def operator_url(self) -> str:
        return f"http://127.0.0.1:{self.ports[8081]}"


@contextlib.contextmanager
def running_platform(
    control_plane: ControlPlane, folder: pathlib.Path, *, more: Mapping[str, str] | None = None
) -> Iterator[Platform]:
    """Install as described in docs/install.md and run it; about 6 s.

    Args:
        more: Variables of operator and API in addition to those of the manifests.
    """
    install(control_plane)
    operator, api = container_of("agentmemory-operator"), container_of("agentmemory-api")
    ports = api.free_ports() | operator.free_ports()
    qdrant, qdrant_url = start_qdrant(folder / "qdrant", api_key=QDRANT_KEY, has_jwt_rbac=True)
    with (
        running(qdrant),
        running(operator.start(control_plane, folder, *OPERATOR_NAMESPACE_FLAGS, ports=ports, more=more)) as operating,
        running(api.start(control_plane, folder, *API_NAMESPACE_FLAGS, ports=ports, more=more)) as serving,
    ):
        operating.wait_for(LEADING)
        made = Platform(
            control_plane=control_plane,
            operator=operating,
            api=serving,
            qdrant=qdrant,
            ports=ports,
            qdrant_url=qdrant_url,
        )
        wait_until(lambda: httpx.get(f"{made.api_url}/readyz").status_code == 200, seconds=20, what="the API")
        yield made
        # A regular stop releases the lease, so the next module need not wait until it expires.
        operating.stop()


def create_infra(platform: Platform) -> Workspace:
    """Create the platform's namespace with the connection `main`, open to all namespaces, and its key."""
    made = Workspace(platform.control_plane, platform.control_plane.create_namespace("infra-"), platform.qdrant_url)
    made.qdrant.headers["api-key"] = QDRANT_KEY
    create_secret(made, KEY_REF["name"], **{KEY_REF["key"]: QDRANT_KEY})
    # A restore and its rollback wait for late writes as long as a call may take.
    made.connect(apiKeySecretRef=KEY_REF, namespaces={"from": "All"}, timeoutSeconds=2)
    return made


def create_secret(workspace: Workspace, name: str, *, hosts: str = "127.0.0.1", **values: str) -> None:
    """Create a Secret as the admin.

    Args:
        hosts: Hosts to which its values may be sent.
    """
    metadata = {"name": name, "annotations": {"agentmemory.dev/hosts": hosts}}
    path = f"/api/v1/namespaces/{workspace.namespace}/secrets"
    body = {"metadata": metadata, "stringData": values}
    check_success(workspace.control_plane.http.post(path, json=body))


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller of the retrieval API with the token of a ServiceAccount."""

    account: Account
    http: httpx.Client

    @classmethod
    def create(cls, platform: Platform, namespace: str, name: str = "bot") -> "Caller":
        account = Account.create(platform.control_plane, namespace, name)
        head = {"Authorization": f"Bearer {account.token()}"}
        return cls(account, httpx.Client(base_url=f"{platform.api_url}/v1/agents/", headers=head, timeout=30))

    def subject(self, *verbs: str) -> Document:
        """Build its entry in `spec.access.subjects`; without verbs it gets all."""
        return self.account.subject(*(verbs or ("read", "write", "admin", "impersonate", "delegate")))

    def get_status(self, slug: str) -> int:
        """Return the status of a GET of the agent."""
        return self.http.get(slug).status_code

    def wait_agent(self, slug: str) -> None:
        """Wait until the API finds the agent."""
        wait_until(lambda: self.get_status(slug) == 200, seconds=SERVED_WITHIN_S, what=f"{slug} in the API")

    def wait_served(self, slug: str) -> None:
        """Wait until the API serves the agent to this caller, including searches."""
        wait_until(lambda: self.search(slug).status_code == 200, seconds=SERVED_WITHIN_S, what=f"{slug} in the API")

    def store(self, slug: str, content: str, *, user: str = "u", **more: Any) -> httpx.Response:
        """Send a memory to store; return the response, which may be a refusal."""
        body = {"user_id": user, "content": content, "vector": VECTOR} | more
        return self.http.post(f"{slug}/memories", json=body)

    def search(self, slug: str, *, user: str = "u") -> httpx.Response:
        """Send a search that matches every memory of a user; return the response, which may be a refusal."""
        return self.http.post(f"{slug}/search", json={"user_id": user, "vector": VECTOR})

    def search_contents(self, slug: str, *, user: str = "u") -> set[str]:
        """Return the contents that a search finds. The search must succeed."""
        answer = self.search(slug, user=user)
        assert answer.status_code == 200, answer.text
        return {result["content"] for result in answer.json()["results"]}


@dataclass(frozen=True, slots=True)
class Tenant:
    """A team with one namespace. It acts only through its own account.

    Attributes:
        admin_workspace: Its namespace with admin rights: to wait, to inspect, and for actions that a tenant may not do.
        account: Account for the API server.
        bot: Its program as a caller of the retrieval API; `agent_spec` grants it access.
        http: Client of the API server with the tenant's token.
    """

    platform: Platform
    admin_workspace: Workspace
    account: Account
    bot: Caller
    http: httpx.Client = field(repr=False)

    @classmethod
    def create(cls, platform: Platform, name: str, rights: Rights | None = "edit") -> "Tenant":
        """Create a namespace with the name as prefix, and an account with rights in it; return once they are effective.

        Args:
            rights: None to grant no rights.
        """
        control_plane = platform.control_plane
        seen = Workspace(control_plane, control_plane.create_namespace(f"{name}-"), platform.qdrant_url)
        seen.qdrant.headers["api-key"] = QDRANT_KEY
        account = Account.create(control_plane, seen.namespace, "team")
        http = httpx.Client(
            base_url=control_plane.url,
            verify=ssl.create_default_context(cafile=str(control_plane.ca_file)),
            headers={"Authorization": f"Bearer {account.token(KUBERNETES)}"},
            timeout=30,
            trust_env=False,
        )
        made = cls(platform, seen, account, Caller.create(platform, seen.namespace), http)
        if rights:
            made.give(rights)
        return made

    @property
    def namespace(self) -> str:
        return self.admin_workspace.namespace

    def give(self, rights: Rights) -> None:
        """Bind the account to the shipped role, or to all rights on the API group, in its own namespace only."""
        if rights == "edit":
            bind(self.account, "agentmemory-edit")
            wait_until(lambda: self.may("create", "agentmemories"), seconds=BOUND_WITHIN_S, what="the shipped role")
            return
        path = f"{RBAC}/namespaces/{self.namespace}/roles"
        body = {"metadata": {"name": "everything"}, "rules": EVERYTHING}
        check_success(self.platform.control_plane.http.post(path, json=body))
        bind(self.account, "everything", kind="Role")
        wait_until(lambda: self.may("patch", "agentmemories/status"), seconds=BOUND_WITHIN_S, what="all rights")

    def may(self, verb: str, resource: str, *, group: str = GROUP, namespace: str | None = None) -> bool:
        """Ask the API server whether the tenant has a right.

        Args:
            resource: Plural name, with `/status` for the status.
            namespace: None for its own namespace, empty for cluster scope.
        """
        plural, _, subresource = resource.partition("/")
        asked = {"verb": verb, "resource": plural, "subresource": subresource, "group": group}
        where = self.namespace if namespace is None else namespace
        body = {"spec": {"resourceAttributes": asked | {"namespace": where}}}
        answer = self.http.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json=body)
        return bool(check_success(answer).json()["status"]["allowed"])

    def agent_spec(self, infra: Workspace, slug: str, **spec: Any) -> Document:
        """Build the spec of an agent on the platform's connection. Callers send vectors, and the bot has all verbs."""
        return {
            "connectionRef": {"name": CONNECTION, "namespace": infra.namespace},
            "agent": slug,
            "preset": "cortex",
            "embedding": {"provider": "none", "dimensions": SIZE},
            "scoring": {"scoreThreshold": -1, "minSimilarity": -1},
            "access": {"subjects": [self.bot.subject()]},
        } | spec

    def apply(self, kind: str, name: str, spec: Document, *, annotations: Mapping[str, str] | None = None) -> Document:
        """Apply an object as the tenant. It must be admitted."""
        answer = self.send_apply(kind, name, spec, annotations=annotations)
        assert answer.is_success, answer.text
        return dict(answer.json())

    def try_apply(self, kind: str, name: str, spec: Document, *, annotations: Mapping[str, str] | None = None) -> str:
        """Try to apply an object; return the refusal, or '' if it was admitted."""
        return refusal_of(self.send_apply(kind, name, spec, annotations=annotations))

    def send_apply(
        self, kind: str, name: str, spec: Document, *, annotations: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send the request of `kubectl apply --server-side`."""
        metadata = {"name": name, "namespace": self.namespace, "annotations": dict(annotations or {})}
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
        asked = {"fieldManager": "tenant", "force": "true", "fieldValidation": "Strict"}
        return self.http.patch(self.admin_workspace.path(kind, name), params=asked, json=body, headers=APPLY)

    def claim(
        self,
        infra: Workspace,
        slug: str,
        *,
        name: str = AGENT,
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> Document:
        """Apply an AgentMemory with a slug."""
        return self.apply("AgentMemory", name, self.agent_spec(infra, slug, **spec), annotations=annotations)

    def annotate(self, name: str = AGENT, *, of: str = "AgentMemory", **annotations: str | None) -> None:
        """Set annotations of the product as the tenant; None removes one."""
        named = {f"agentmemory.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        answer = self._patch(of, name, {"metadata": {"annotations": named}})
        assert answer.is_success, answer.text

    def patch_status(self, kind: str, name: str, status: Document) -> None:
        """Merge into a status as the tenant. It must be admitted."""
        refused = self.try_patch_status(kind, name, status)
        assert not refused, refused

    def try_patch_status(self, kind: str, name: str, status: Document) -> str:
        """Try to merge into a status; return the refusal, or '' if it was admitted."""
        return refusal_of(self._patch(kind, f"{name}/status", {"status": status}))

    def delete(self, name: str = AGENT, kind: str = "AgentMemory") -> None:
        """Delete an object as the tenant. The request must be admitted."""
        answer = self.http.delete(self.admin_workspace.path(kind, name))
        assert answer.is_success, answer.text

    def read(self, kind: str, name: str) -> Document:
        """Return an object as the tenant reads it."""
        answer = self.http.get(self.admin_workspace.path(kind, name))
        assert answer.is_success, answer.text
        return dict(answer.json())

    def wait_ready(self, name: str = AGENT, *, seconds: float = 15) -> Document:
        """Return the AgentMemory once its latest generation is Ready and in sync."""
        return self.admin_workspace.wait_ready(name, seconds=seconds)

    def wait_condition(
        self, kind: str, wanted: str, *, name: str = AGENT, of: str = "AgentMemory", seconds: float = 15
    ) -> Document:
        """Return the condition once it is `STATUS/Reason` for the latest generation."""
        return self.admin_workspace.wait_condition(kind, wanted, name=name, of=of, seconds=seconds)

    def create_served(self, infra: Workspace, slug: str, *contents: str, **spec: Any) -> Document:
        """Return a Ready AgentMemory that the API serves to the bot, with these memories of the user `u`."""
        self.claim(infra, slug, **spec)
        made = self.wait_ready()
        self.bot.wait_served(slug)
        for content in contents:
            stored = self.bot.store(slug, content)
            assert stored.status_code == 201, stored.text
        return made

    def close(self) -> None:
        """Remove its objects and their collections."""
        self.admin_workspace.clean()
        self.http.close()
        self.bot.http.close()

    def _patch(self, kind: str, name: str, body: Document) -> httpx.Response:
        return self.http.patch(self.admin_workspace.path(kind, name), json=body, headers=MERGE)


def bind(account: Account, role: str, *, kind: str = "ClusterRole") -> None:
    """Bind an account to a role in its own namespace."""
    body = {
        "metadata": {"generateName": f"{account.name}-"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": account.namespace, "name": account.name}],
    }
    path = f"{RBAC}/namespaces/{account.namespace}/rolebindings"
    check_success(account.control_plane.http.post(path, json=body))


def refusal_of(answer: httpx.Response) -> str:
    """Return the status and the API server's message, or '' on success."""
    return "" if answer.is_success else f"{answer.status_code}: {answer.json()['message']}"


def read_agent_secret(platform: Platform, slug: str) -> httpx.Response:
    """Read the Secret through which the operator gives the API the keys of an agent; return the response."""
    return platform.control_plane.http.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/agentmemory-agent-{slug}")

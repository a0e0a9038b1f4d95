"""Build the policy for outgoing connections, which covers every URL that a tenant can write."""

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from agentmemory_operator.connections.rules.egress_policy import SETTING, EgressPolicy, parse_allowed
from agentmemory_operator.settings import SettingInvalid, Settings

if TYPE_CHECKING:
    from agentmemory_operator.adapters.http.egress import Egress

# DNS name of the API server inside the cluster. Pods can connect to this name and to the address in their environment.
API_NAME, API_PORT = "kubernetes.default.svc", 443


def build_policy(settings: Settings) -> EgressPolicy:
    """Build the policy from the settings.

    Raises:
        SettingInvalid: If an entry of AGENTMEMORY_ALLOWED_HOSTS is malformed.
    """
    try:
        allowed = parse_allowed(settings.allowed_hosts)
    except ValueError as exc:
        raise SettingInvalid(f"{SETTING}: {exc}") from exc
    return EgressPolicy(allowed=allowed, is_in_cluster=settings.is_in_cluster)


def build_egress(settings: Settings) -> "Egress":
    """Build the check that clients apply to each host before they connect. Errors: see `build_policy`."""
    api_servers = [settings.api_server] if settings.api_server else []
    api_servers += [(API_NAME, API_PORT)] if settings.is_in_cluster else []
    # Import here, so that commands without connections do not load the HTTP client.
    egress: Egress = import_module("agentmemory_operator.adapters.http.egress").Egress(
        build_policy(settings), api_servers=tuple(dict.fromkeys(api_servers))
    )
    return egress


def with_api_server(settings: Settings, url: str) -> Settings:
    """Return the settings with the API server's host and port, to which no tenant URL may connect.

    Args:
        url: URL of the API server from the kubeconfig or the pod.

    Raises:
        SpecInvalid: If the URL has no host, or its scheme is neither http nor https.
    """
    host_and_port = import_module("agentmemory_operator.adapters.http.egress").host_and_port
    return replace(settings, api_server=host_and_port("the API server's URL", url))

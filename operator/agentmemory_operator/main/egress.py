"""Where this process may connect: one policy for every URL that a tenant can write."""

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from agentmemory_operator.connections.rules.egress import SETTING, EgressPolicy, parse_allowed
from agentmemory_operator.settings import SettingInvalid, Settings

if TYPE_CHECKING:
    from agentmemory_operator.adapters.http.egress import Egress

# What the cluster's own name server calls the API server, whatever address pods are told.
API_NAME, API_PORT = "kubernetes.default.svc", 443


def policy_of(settings: Settings) -> EgressPolicy:
    """The policy that the environment asks for.

    Raises:
        SettingInvalid: an entry of AGENTMEMORY_ALLOWED_HOSTS is none.
    """
    try:
        allowed = parse_allowed(settings.allowed_hosts)
    except ValueError as exc:
        raise SettingInvalid(f"{SETTING}: {exc}") from exc
    return EgressPolicy(allowed=allowed, is_in_cluster=settings.is_in_cluster)


def egress_of(settings: Settings) -> "Egress":
    """What decides where clients connect."""
    api_servers = [settings.api_server] if settings.api_server else []
    api_servers += [(API_NAME, API_PORT)] if settings.is_in_cluster else []
    # Verbs that connect nowhere do not load the client.
    egress: Egress = import_module("agentmemory_operator.adapters.http.egress").Egress(
        policy_of(settings), api_servers=tuple(dict.fromkeys(api_servers))
    )
    return egress


def beside_api_server(settings: Settings, url: str) -> Settings:
    """The settings of a process that talks to an API server, to which nothing else of it connects.

    Args:
        url: of the API server, as the kubeconfig or the pod has it.
    """
    place_of = import_module("agentmemory_operator.adapters.http.egress").place_of
    return replace(settings, api_server=place_of("the API server's URL", url))

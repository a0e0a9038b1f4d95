"""Hosts and addresses to which this product may connect."""

from ipaddress import ip_address

import pytest

from agentmemory_operator.connections.rules.egress_policy import (
    EgressPolicy,
    EgressRefusal,
    equivalent_addresses,
    parse_allowed,
    refusal_message,
)

PORT = 6333
API = (ip_address("10.96.0.1"), 443)


def policy(text: str = "", *, is_in_cluster: bool = True) -> EgressPolicy:
    return EgressPolicy(allowed=parse_allowed(text), is_in_cluster=is_in_cluster)


NEVER = [
    *("0.0.0.0", "0.1.2.3", "::"),
    *("169.254.0.1", "169.254.169.254", "169.254.170.2", "fe80::1", "fe80::a9fe:a9fe", "febf::1"),
    *("224.0.0.1", "239.255.255.250", "255.255.255.255", "ff02::1", "ff0e::1"),
    *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
]


@pytest.mark.parametrize("address", NEVER)
@pytest.mark.parametrize("listed", ["", "0.0.0.0/0,::/0", "qdrant.infra.svc,*.example.com"])
@pytest.mark.parametrize("is_in_cluster", [True, False])
def test_forbidden_addresses_stay_forbidden(address: str, listed: str, is_in_cluster: bool) -> None:
    checked_policy = policy(f"{listed},{address}" if listed else "", is_in_cluster=is_in_cluster)

    assert checked_policy.find_refusal("qdrant.infra.svc", PORT, ip_address(address)) is EgressRefusal.NEVER


@pytest.mark.parametrize(
    "address",
    [
        "::ffff:169.254.169.254",
        "::ffff:0:169.254.169.254",
        "::169.254.169.254",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::169.254.169.254",  # a prefix of 96 bits
        "64:ff9b:1:a9fe:a9:fe00::",  # a prefix of 48 bits
        "64:ff9b:1:a9:fe:a9fe::",  # a prefix of 56 bits
        "64:ff9b:1:0:a9:fea9:fe00:0",  # a prefix of 64 bits
        "2002:a9fe:a9fe::1",
        "2001:0:a9fe:a9fe::1",
        "2001:0:101:101:0:0:5601:5601",
        "2001:db8::5efe:a9fe:a9fe",
        "2001:db8::200:5efe:a9fe:a9fe",
    ],
)
def test_embedded_address_is_checked(address: str) -> None:
    assert ip_address("169.254.169.254") in set(equivalent_addresses(ip_address(address)))
    assert policy().find_refusal("h", PORT, ip_address(address)) is EgressRefusal.NEVER


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.5", "192.168.1.1", "172.16.0.1", "100.64.0.1", "8.8.8.8", "2001:4860:4860::8888", "fd12:3456::1"),
        *("::ffff:10.0.0.5", "64:ff9b::10.0.0.5", "64:ff9b:1::10.0.0.5", "2002:808:808::1"),
        *("168.63.129.17", "100.100.100.201", "169.253.255.255", "169.255.0.0"),
    ],
)
def test_other_addresses_are_allowed_without_a_list(address: str) -> None:
    assert policy().find_refusal("h", PORT, ip_address(address), api_server={API}) is None


@pytest.mark.parametrize(
    ("address", "port", "refusal"),
    [
        ("10.96.0.1", 443, EgressRefusal.NEVER),
        ("::ffff:10.96.0.1", 443, EgressRefusal.NEVER),
        ("64:ff9b::10.96.0.1", 443, EgressRefusal.NEVER),
        ("10.96.0.1", 6333, None),
        ("10.96.0.2", 443, None),
    ],
)
def test_api_server_is_blocked_by_address_and_port(address: str, port: int, refusal: EgressRefusal | None) -> None:
    checked_policy = policy("10.96.0.0/16")

    assert checked_policy.find_refusal("kubernetes.default.svc", port, ip_address(address), api_server={API}) is refusal


LOOPBACK = ["127.0.0.1", "127.255.0.7", "::1", "::ffff:127.0.0.1", "64:ff9b::127.0.0.1"]


@pytest.mark.parametrize("address", LOOPBACK)
def test_loopback_is_allowed_outside_pods(address: str) -> None:
    assert policy(is_in_cluster=False).find_refusal("localhost", PORT, ip_address(address)) is None
    assert policy().find_refusal("localhost", PORT, ip_address(address)) is EgressRefusal.LOOPBACK


@pytest.mark.parametrize(
    ("listed", "host", "address", "refusal"),
    [
        ("127.0.0.1", "localhost", "127.0.0.1", None),
        ("127.0.0.1:6333", "localhost", "127.0.0.1", None),
        ("127.0.0.1:6334", "localhost", "127.0.0.1", EgressRefusal.LOOPBACK),
        ("127.0.0.0/8", "sidecar", "127.9.9.9", None),
        ("localhost", "localhost", "127.0.0.1", None),
        ("localhost", "LOCALHOST.", "::1", None),
        ("::1", "localhost", "::1", None),
        ("127.0.0.1", "localhost", "::1", EgressRefusal.LOOPBACK),
        ("127.0.0.1", "localhost", "::ffff:127.0.0.1", None),
        # A list of all addresses excludes loopback, and the owner of a listed name chooses its address.
        ("0.0.0.0/0,::/0", "localhost", "127.0.0.1", EgressRefusal.LOOPBACK),
        ("evil.example.com", "evil.example.com", "127.0.0.1", EgressRefusal.LOOPBACK),
        ("*.example.com", "evil.example.com", "::1", EgressRefusal.LOOPBACK),
        ("10.0.0.0/8", "localhost", "127.0.0.1", EgressRefusal.LOOPBACK),
    ],
)
def test_loopback_in_a_pod_must_be_listed_itself(
    listed: str, host: str, address: str, refusal: EgressRefusal | None
) -> None:
    assert policy(listed).find_refusal(host, PORT, ip_address(address)) is refusal


@pytest.mark.parametrize(
    ("listed", "host", "port", "address", "refusal"),
    [
        ("qdrant.infra.svc", "qdrant.infra.svc", 6333, "10.0.0.5", None),
        ("qdrant.infra.svc", "QDRANT.infra.svc.", 6333, "10.0.0.5", None),
        ("qdrant.infra.svc:6333", "qdrant.infra.svc", 6333, "10.0.0.5", None),
        ("qdrant.infra.svc:6333", "qdrant.infra.svc", 6334, "10.0.0.5", EgressRefusal.NOT_LISTED),
        ("qdrant.infra.svc", "qdrant.other.svc", 6333, "10.0.0.5", EgressRefusal.NOT_LISTED),
        ("*.infra.svc", "qdrant.infra.svc", 6333, "10.0.0.5", None),
        ("*.infra.svc", "a.qdrant.infra.svc", 6333, "10.0.0.5", EgressRefusal.NOT_LISTED),
        ("*.infra.svc", "infra.svc", 6333, "10.0.0.5", EgressRefusal.NOT_LISTED),
        ("10.0.0.0/8", "anything.example.com", 6333, "10.0.0.5", None),
        ("10.0.0.0/8", "anything.example.com", 6333, "::ffff:10.0.0.5", None),
        ("10.0.0.0/8", "anything.example.com", 6333, "64:ff9b::10.0.0.5", None),
        ("10.0.0.0/8", "anything.example.com", 6333, "2002:a00:5::1", EgressRefusal.NOT_LISTED),
        ("10.0.0.0/8", "10.0.0.5.example.com", 6333, "11.0.0.5", EgressRefusal.NOT_LISTED),
        ("10.0.0.5", "a.example.com", 6333, "10.0.0.5", None),
        ("10.0.0.5:6334", "a.example.com", 6333, "10.0.0.5", EgressRefusal.NOT_LISTED),
        ("fd00::/8", "a.example.com", 6333, "fd12::1", None),
        ("[fd12::1]:6333", "a.example.com", 6333, "fd12::1", None),
        ("fd12::1", "fd12::2", 6333, "fd12::2", EgressRefusal.NOT_LISTED),
    ],
)
def test_list_allows_only_its_entries(
    listed: str, host: str, port: int, address: str, refusal: EgressRefusal | None
) -> None:
    assert policy(listed).find_refusal(host, port, ip_address(address)) is refusal


@pytest.mark.parametrize(
    ("listed", "host", "refusal"),
    [
        ("", "a.example.com", None),
        ("a.example.com", "a.example.com", None),
        ("a.example.com", "b.example.com", EgressRefusal.NOT_LISTED),
        ("a.example.com,10.0.0.0/8", "b.example.com", None),
        ("", "metadata.google.internal", EgressRefusal.NEVER),
    ],
)
def test_name_is_resolved_only_for_listed_networks(listed: str, host: str, refusal: EgressRefusal | None) -> None:
    assert policy(listed).find_unresolved_refusal(host, PORT) is refusal


@pytest.mark.parametrize(
    ("listed", "host", "port", "refusal"),
    [
        ("", "api.openai.com", 443, None),
        ("api.openai.com", "api.openai.com", 443, None),
        ("*.openai.com", "api.example.com", 443, EgressRefusal.NOT_LISTED),
        ("10.0.0.0/8", "api.openai.com", 443, EgressRefusal.NOT_LISTED),
        ("10.0.0.0/8", "10.1.1.1", 443, None),
        ("", "metadata.google.internal", 80, EgressRefusal.NEVER),
        ("metadata.google.internal", "Metadata.Google.Internal.", 80, EgressRefusal.NEVER),
        ("", "169.254.169.254", 80, EgressRefusal.NEVER),
        ("", "::ffff:a9fe:a9fe", 80, EgressRefusal.NEVER),
        ("", "kubernetes.default.svc", 443, EgressRefusal.NEVER),
        ("", "kubernetes.default.svc", 8443, None),
        ("", "10.96.0.1", 443, EgressRefusal.NEVER),
        ("", "localhost", 80, EgressRefusal.LOOPBACK),
        ("localhost", "localhost", 80, None),
        ("", "127.0.0.1", 80, EgressRefusal.LOOPBACK),
    ],
)
def test_proxied_host_names_are_checked(listed: str, host: str, port: int, refusal: EgressRefusal | None) -> None:
    api = {("kubernetes.default.svc", 443), ("10.96.0.1", 443)}

    assert policy(listed).find_name_refusal(host, port, api_server=api) is refusal


@pytest.mark.parametrize(
    "entry",
    [
        "http://a.example.com",
        "a.example.com/path",
        "10.0.0.0/33",
        "a:b",
        "a:0",
        "a:70000",
        "*",
        "*.",
        "a b",
        "u@h",
        "x::y",
    ],
)
def test_invalid_entry_is_quoted(entry: str) -> None:
    with pytest.raises(ValueError, match=r"is not a host|is not a network|needs a port") as raised:
        parse_allowed(f"ok.example.com, {entry}")

    assert repr(entry) in str(raised.value)


def test_blank_setting_is_no_list() -> None:
    assert parse_allowed(" , ,") is None


@pytest.mark.parametrize("refusal", list(EgressRefusal))
def test_message_contains_field_host_and_remedy(refusal: EgressRefusal) -> None:
    message = refusal_message(refusal, "spec.url", "qdrant.example.com", 6333)

    assert message.startswith("spec.url: connections to qdrant.example.com:6333 are blocked: ")
    assert "use another host" in message
    assert refusal is EgressRefusal.NEVER or "AGENTMEMORY_ALLOWED_HOSTS" in message

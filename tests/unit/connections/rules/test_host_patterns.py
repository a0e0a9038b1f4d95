"""Host patterns of settings and annotations."""

import pytest

from agentmemory_operator.connections.rules.host_patterns import matches, normalise_host, parse_pattern


@pytest.mark.parametrize(
    ("pattern", "host", "port", "is_match"),
    [
        ("api.openai.com", "api.openai.com", 443, True),
        ("api.openai.com", "API.OpenAI.com", 443, True),
        ("API.openai.com.", "api.openai.com", 443, True),
        (" api.openai.com ", "api.openai.com.", 443, True),
        ("api.openai.com:443", "api.openai.com", 443, True),
        ("api.openai.com:443", "api.openai.com", 8443, False),
        ("api.openai.com", "api.openai.com.evil.example", 443, False),
        ("api.openai.com", "xapi.openai.com", 443, False),
        ("openai.com", "api.openai.com", 443, False),
        ("*.openai.com", "api.openai.com", 443, True),
        ("*.openai.com", "openai.com", 443, False),
        ("*.openai.com", ".openai.com", 443, False),
        ("*.openai.com", "a.api.openai.com", 443, False),
        ("*.openai.com:443", "api.openai.com", 80, False),
        ("*.0.0.1", "127.0.0.1", 80, False),
        ("*", "api.openai.com", 443, False),
        ("a.*.com", "a.b.com", 443, False),
        ("10.0.0.5", "10.0.0.5", 80, True),
        ("10.0.0.5:80", "10.0.0.5", 81, False),
        ("::1", "::1", 80, True),
        ("[::1]:80", "0:0:0:0:0:0:0:1", 80, True),
        ("[::1]:80", "[::1]", 81, False),
        ("fe80::1", "fe80::1%eth0", 80, True),
        ("bücher.example", "xn--bcher-kva.example", 80, True),
        ("", "", 80, False),
        ("evil/../a", "a", 80, False),
    ],
)
def test_wildcard_matches_one_level(pattern: str, host: str, port: int, is_match: bool) -> None:
    assert matches(pattern, host, port) is is_match


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("Qdrant.infra.svc:6333", ("qdrant.infra.svc", 6333)),
        ("*.infra.svc", ("*.infra.svc", None)),
        ("[fd00::1]:6333", ("fd00::1", 6333)),
        ("fd00:0::1", ("fd00::1", None)),
    ],
)
def test_pattern_has_host_and_port(pattern: str, parts: tuple[str, int | None]) -> None:
    assert parse_pattern(pattern) == parts


@pytest.mark.parametrize(
    ("host", "normalised"), [("A.Example.", "a.example"), ("[::0:1]", "::1"), ("fe80::1%lo", "fe80::1")]
)
def test_host_is_normalised(host: str, normalised: str) -> None:
    assert normalise_host(host) == normalised

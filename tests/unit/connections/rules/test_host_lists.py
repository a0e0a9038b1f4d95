"""Destinations that a Secret's annotation allows, and the command that adds another one."""

import os
import pathlib
import subprocess
import time

import pytest

from agentmemory_operator.connections.rules.host_lists import (
    BY_HAND,
    NOWHERE,
    destinations_of,
    find_unlisted,
    is_valid_reference,
    refusal_message,
)
from agentmemory_operator.errors import SpecInvalid

LISTED = [
    # Annotation, and a URL that it allows.
    ("api.openai.com", "https://api.openai.com/v1"),
    ("api.openai.com", "https://api.openai.com"),
    ("api.openai.com", "http://api.openai.com:8080/"),
    ("API.OpenAI.com", "https://api.openai.com"),
    ("api.openai.com", "https://API.OPENAI.COM/v1"),
    ("api.openai.com.", "https://api.openai.com"),
    ("api.openai.com", "https://api.openai.com./v1"),
    ("api.openai.com.:443", "https://api.openai.com"),
    ("api.openai.com:443", "https://api.openai.com"),
    ("qdrant.infra.svc:80", "http://qdrant.infra.svc"),
    ("qdrant.infra.svc:6333", "http://qdrant.infra.svc:6333"),
    ("qdrant.infra.svc:6333", "http://qdrant.infra.svc:06333"),
    (" a.example ,\tqdrant.infra.svc\n", "http://qdrant.infra.svc:6333"),
    (",,qdrant,,", "http://qdrant:6333"),
    ("*.infra.svc", "http://qdrant.infra.svc:6333"),
    ("*.infra.svc:6333", "http://qdrant.infra.svc:6333"),
    ("*.INFRA.svc.", "http://qdrant.infra.svc:6333"),
    ("my_host", "http://my_host:1"),
    ("127.0.0.1", "http://127.0.0.1:6333"),
    ("[::1]", "http://[::1]:6333"),
    ("[::1]:6333", "http://[::1]:6333"),
    ("[0:0:0:0:0:0:0:1]", "http://[::1]:6333"),
    ("[2001:DB8::1]", "https://[2001:db8:0:0::1]/v1"),
    ("xn--mnchen-3ya.example", "https://xn--mnchen-3ya.example"),
]
NOT_LISTED = [
    (None, "https://api.openai.com"),
    ("", "https://api.openai.com"),
    (" , ,", "https://api.openai.com"),
    ("api.openai.com", "https://evil.example"),
    ("api.openai.com", "https://api.openai.com.evil.example"),
    ("api.openai.com", "https://evilapi.openai.com"),
    ("api.openai.com", "https://x.api.openai.com"),
    ("openai.com", "https://api.openai.com"),
    ("api.openai.com:443", "http://api.openai.com"),
    ("api.openai.com:443", "https://api.openai.com:8443"),
    ("api.openai.com:0443", "https://api.openai.com"),
    ("api.openai.com:", "https://api.openai.com"),
    ("https://api.openai.com", "https://api.openai.com"),
    ("api.openai.com/v1", "https://api.openai.com/v1"),
    ("user@api.openai.com", "https://api.openai.com"),
    ("api openai.com", "https://api.openai.com"),
    ("api.openai.com;evil.example", "https://evil.example"),
    ("*", "https://api.openai.com"),
    ("*.", "https://api.openai.com"),
    ("*.com", "https://openai.com"),
    ("*.com", "https://api.openai.com"),
    ("*.svc", "http://qdrant:6333"),
    ("*.openai.com", "https://openai.com"),
    ("*.openai.com", "https://a.b.openai.com"),
    ("*.*.openai.com", "https://a.b.openai.com"),
    ("a*.openai.com", "https://api.openai.com"),
    ("**.openai.com", "https://api.openai.com"),
    (".openai.com", "https://api.openai.com"),
    ("*openai.com", "https://api.openai.com"),
    ("api.openai.com..", "https://api.openai.com"),
    ("*.0.0.1", "http://127.0.0.1"),
    ("127.0.0.1", "http://127.1"),
    ("127.0.0.1", "http://2130706433"),
    ("127.0.0.1", "http://[::ffff:127.0.0.1]"),
    ("::1", "http://[::1]"),
    ("[::1", "http://[::1]"),
    ("[::2]", "http://[::1]"),
    ("[::1]:80", "http://[::1]:6333"),
    ("münchen.example", "https://xn--mnchen-3ya.example"),
    # U+212A (Kelvin sign) lower-cases to k; some parsers read U+FF0E as a dot.
    ("api.open\u212a.com", "https://api.openk.com"),
    ("api\uff0eopenai\uff0ecom", "https://api.openai.com"),
]


@pytest.mark.parametrize(("annotation", "url"), LISTED)
def test_listed_host_is_allowed(annotation: str, url: str) -> None:
    assert find_unlisted(destinations_of(url), annotation) == ()


@pytest.mark.parametrize(("annotation", "url"), NOT_LISTED)
def test_other_hosts_are_refused(annotation: str | None, url: str) -> None:
    assert find_unlisted(destinations_of(url), annotation) == destinations_of(url).host_ports


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.openai.com",
        "ftp://api.openai.com",
        "HTTPS://api.openai.com",
        "https://",
        "https:///v1",
        "https://api.openai.com@evil.example/v1",
        "https://user:pass@api.openai.com",
        "https://evil.example\\@api.openai.com",
        "https://evil.example#@api.openai.com",
        "https://evil.example?@api.openai.com",
        "https://api.openai.com\n.evil.example",
        "https://api.openai.com\t/v1",
        " https://api.openai.com",
        "https://api.openai.com /v1",
        "https://münchen.example",
        "https://api\uff0eopenai.com",
        "https://api..openai.com",
        "https://.openai.com",
        f"https://{'a' * 64}.example",
        f"https://{'a.' * 127}example",
        "https://api.openai.com:0",
        "https://api.openai.com:65536",
        "https://api.openai.com:٤٤٣",
        "https://[::1",
        "https://[::1%25eth0]",
        "https://[1.2.3.4]",
        "https://[:::]",
    ],
)
def test_ambiguous_url_is_rejected(url: str) -> None:
    """Clients parse such URLs differently, so no Secret is sent to them."""
    with pytest.raises(SpecInvalid, match="no Secret is sent to it") as error:
        destinations_of(url)
    assert error.value.reason == "InvalidSpec"


def test_every_node_of_a_cluster_must_be_listed() -> None:
    to = destinations_of("http://qdrant.infra.svc:6333", "http://qdrant-0.qdrant.infra.svc:6333", "http://evil.example")

    missing = find_unlisted(to, "qdrant.infra.svc,*.qdrant.infra.svc")

    assert [str(place) for place in missing] == ["evil.example"]


def test_exempt_destinations_need_no_annotation() -> None:
    assert (find_unlisted(NOWHERE, None), find_unlisted(BY_HAND, None)) == ((), ())


def test_largest_annotation_is_checked_within_2_s() -> None:
    largest = 256 << 10
    annotation = ",".join(["*.a", "[::2]:1", "b:", "ß"] * (largest // 16))

    started_s = time.perf_counter()
    for url in ("https://api.openai.com", "http://[::1]"):
        assert find_unlisted(destinations_of(url), annotation) != ()
        assert find_unlisted(destinations_of(url), f"{annotation},api.openai.com,[::1]") == ()
    assert time.perf_counter() - started_s < 2


@pytest.mark.parametrize(
    ("name", "key", "is_valid"),
    [
        ("openai", "api-key", True),
        ("a.b-c", "ca.crt", True),
        ("", "key", False),
        ("openai", "", False),
        ("../../kube-system/secrets/x", "key", False),
        ("openai", "../key", False),
        ("openai?watch=true", "key", False),
        ("openai\n", "key", False),
        ("Openai", "key", False),
        ("a" * 254, "key", False),
    ],
)
def test_reference_with_a_path_is_invalid(name: str, key: str, is_valid: bool) -> None:
    assert is_valid_reference(name, key) is is_valid


class TestCommand:
    def test_is_one_line_and_lists_the_host(self) -> None:
        message = refusal_message("agents", "openai", destinations_of("https://api.openai.com/v1").host_ports, None)

        assert message.endswith(
            "kubectl -n agents annotate secret openai agentmemory.dev/hosts=api.openai.com --overwrite"
        )

    def test_lists_a_nondefault_port(self) -> None:
        message = refusal_message("infra", "qdrant", destinations_of("http://qdrant.infra.svc:6333").host_ports, "")

        assert "agentmemory.dev/hosts=qdrant.infra.svc:6333 --overwrite" in message

    def test_keeps_listed_hosts_without_showing_them(self, tmp_path: pathlib.Path) -> None:
        message = refusal_message(
            "infra", "qdrant", destinations_of("http://[::1]:6333").host_ports, "secret.corp.example, b"
        )

        assert "corp" not in message
        assert _run(message.partition("to be sent there: ")[2], tmp_path, answer="secret.corp.example, b") == [
            *("-n", "infra", "annotate", "secret", "qdrant"),
            "agentmemory.dev/hosts=secret.corp.example, b,[::1]:6333",
            "--overwrite",
        ]

    def test_quotes_an_address_in_brackets(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "agentmemory.dev").mkdir()
        message = refusal_message("infra", "qdrant", destinations_of("http://[::1]").host_ports, None)

        assert "agentmemory.dev/hosts=[::1]" in _run(message.partition("to be sent there: ")[2], tmp_path)

    def test_stays_short_for_a_cluster_of_64_nodes(self) -> None:
        urls = [f"http://qdrant-{number}.{'x' * 60}.infra.svc:6333" for number in range(64)]

        message = refusal_message("i" * 63, "q" * 60, destinations_of(*urls).host_ports, "a")

        assert len(message) <= 1024
        assert "and 63 more hosts" in message


def _run(command: str, folder: pathlib.Path, *, answer: str = "") -> list[str]:
    """Run a command line with a fake kubectl; return the arguments of its last call that is no `get`."""
    kubectl = folder / "kubectl"
    kubectl.write_text(
        f"#!/bin/sh\ncase \"$*\" in *' get '*) printf %s '{answer}';; *) printf '%s\\n' \"$@\" ;; esac\n"
    )
    kubectl.chmod(0o755)
    environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return process.stdout.splitlines()

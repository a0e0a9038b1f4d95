"""Which places a Secret's annotation lets its values go to, and the command that lets them go to another."""

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
    # The annotation, and a URL that it lets a value go to.
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
    # U+212A, the sign of Kelvin, is k in lower case; U+FF0E is a dot to some.
    ("api.open\u212a.com", "https://api.openk.com"),
    ("api\uff0eopenai\uff0ecom", "https://api.openai.com"),
]


@pytest.mark.parametrize(("annotation", "url"), LISTED)
def test_a_value_goes_where_the_annotation_says(annotation: str, url: str) -> None:
    assert find_unlisted(destinations_of(url), annotation) == ()


@pytest.mark.parametrize(("annotation", "url"), NOT_LISTED)
def test_and_nowhere_else(annotation: str | None, url: str) -> None:
    assert find_unlisted(destinations_of(url), annotation) == destinations_of(url).places


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
def test_a_url_that_clients_may_read_in_two_ways_gets_no_secret(url: str) -> None:
    with pytest.raises(SpecInvalid, match="no Secret is sent to it") as told:
        destinations_of(url)
    assert told.value.reason == "InvalidSpec"


def test_every_node_of_a_cluster_has_to_be_listed() -> None:
    to = destinations_of("http://qdrant.infra.svc:6333", "http://qdrant-0.qdrant.infra.svc:6333", "http://evil.example")

    missing = find_unlisted(to, "qdrant.infra.svc,*.qdrant.infra.svc")

    assert [str(place) for place in missing] == ["evil.example"]


def test_what_goes_nowhere_and_what_a_person_typed_needs_no_annotation() -> None:
    assert (find_unlisted(NOWHERE, None), find_unlisted(BY_HAND, None)) == ((), ())


def test_an_annotation_as_large_as_kubernetes_takes_is_read_at_once() -> None:
    largest = 256 << 10
    crowd = ",".join(["*.a", "[::2]:1", "b:", "ß"] * (largest // 16))

    began = time.perf_counter()
    for url in ("https://api.openai.com", "http://[::1]"):
        assert find_unlisted(destinations_of(url), crowd) != ()
        assert find_unlisted(destinations_of(url), f"{crowd},api.openai.com,[::1]") == ()
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    ("name", "key", "may"),
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
def test_a_name_that_would_lead_to_another_path_names_no_secret(name: str, key: str, may: bool) -> None:
    assert is_valid_reference(name, key) is may


class TestCommand:
    def test_it_is_one_line_that_lists_the_host(self) -> None:
        told = refusal_message("agents", "openai", destinations_of("https://api.openai.com/v1").places, None)

        assert told.endswith(
            "kubectl -n agents annotate secret openai agentmemory.dev/hosts=api.openai.com --overwrite"
        )

    def test_a_port_of_its_own_is_listed_with_the_host(self) -> None:
        told = refusal_message("infra", "qdrant", destinations_of("http://qdrant.infra.svc:6333").places, "")

        assert "agentmemory.dev/hosts=qdrant.infra.svc:6333 --overwrite" in told

    def test_it_keeps_what_is_listed_and_does_not_tell_it(self, tmp_path: pathlib.Path) -> None:
        told = refusal_message("infra", "qdrant", destinations_of("http://[::1]:6333").places, "secret.corp.example, b")

        assert "corp" not in told
        assert _run(told.partition("to be sent there: ")[2], tmp_path, answer="secret.corp.example, b") == [
            *("-n", "infra", "annotate", "secret", "qdrant"),
            "agentmemory.dev/hosts=secret.corp.example, b,[::1]:6333",
            "--overwrite",
        ]

    def test_the_shell_takes_an_address_in_brackets_as_it_is(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "agentmemory.dev").mkdir()
        told = refusal_message("infra", "qdrant", destinations_of("http://[::1]").places, None)

        assert "agentmemory.dev/hosts=[::1]" in _run(told.partition("to be sent there: ")[2], tmp_path)

    def test_it_is_not_cut_where_a_cluster_has_many_nodes(self) -> None:
        urls = [f"http://qdrant-{number}.{'x' * 60}.infra.svc:6333" for number in range(64)]

        told = refusal_message("i" * 63, "q" * 60, destinations_of(*urls).places, "a")

        assert len(told) <= 1024
        assert "and 63 more hosts" in told


def _run(command: str, folder: pathlib.Path, *, answer: str = "") -> list[str]:
    """Run a command line with a kubectl that tells an annotation, and keeps its last arguments."""
    kubectl = folder / "kubectl"
    kubectl.write_text(
        f"#!/bin/sh\ncase \"$*\" in *' get '*) printf %s '{answer}';; *) printf '%s\\n' \"$@\" ;; esac\n"
    )
    kubectl.chmod(0o755)
    environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()

"""Origin checks of requests, by headers that a browser sets and a page cannot."""

import pytest

from agentmemory_operator.runtime.rules.web_origin import foreign_reason, is_local_host

OWN_HOST = b"127.0.0.1:8080"


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8080", "LOCALHOST:8080", "localhost.:8080", "api.localhost:8080"),
        *("127.0.0.1", "127.0.0.1:8080", "127.0.0.1:9000", "127.8.9.1:1", "[::1]", "[::1]:8080"),
    ],
)
def test_local_host_is_accepted(host: str) -> None:
    assert is_local_host(host.encode())


@pytest.mark.parametrize(
    "host",
    [
        *("", ":8080", "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example:8080"),
        *("evillocalhost", "localhost:evil", "127.0.0.1:8080:1", "127.0.0.1@evil.example", "evil.example/localhost"),
        *("0.0.0.0:8080", "[::]:8080", "10.0.0.7:8080", "169.254.169.254", "[fe80::1]", "::1", "[::1", "[localhost]"),
        *("[::1]evil", "127.1", "2130706433", "0x7f000001", "localhost,evil.example", "\xe9vil", "127.0.0.1 "),
    ],
)
def test_other_host_is_rejected(host: str) -> None:
    assert not is_local_host(host.encode())


@pytest.mark.parametrize(
    ("headers", "is_local", "is_allowed"),
    [
        # curl, an SDK or a script.
        ({b"host": OWN_HOST}, True, True),
        ({b"host": OWN_HOST, b"sec-fetch-mode": b"cors"}, True, True),
        # A browser: a typed address, then requests of the loaded page.
        ({b"host": OWN_HOST, b"sec-fetch-site": b"none", b"sec-fetch-mode": b"navigate"}, True, True),
        ({b"host": OWN_HOST, b"sec-fetch-site": b"same-origin"}, True, True),
        ({b"host": OWN_HOST, b"origin": b"http://127.0.0.1:8080", b"sec-fetch-site": b"same-origin"}, True, True),
        ({b"host": b"LocalHost:8080", b"origin": b"http://localhost:8080"}, True, True),
        # A page of another site, port or scheme, of a file, of an extension.
        ({b"host": OWN_HOST, b"origin": b"http://evil.example"}, True, False),
        ({b"host": OWN_HOST, b"origin": b"http://localhost:8080"}, True, False),
        ({b"host": OWN_HOST, b"origin": b"http://127.0.0.1:3000"}, True, False),
        ({b"host": OWN_HOST, b"origin": b"https://127.0.0.1:8080"}, True, False),
        ({b"host": OWN_HOST, b"origin": b"http://127.0.0.1:8080.evil.example"}, True, False),
        ({b"host": OWN_HOST, b"origin": b"null"}, True, False),
        ({b"host": OWN_HOST, b"origin": b""}, True, False),
        ({b"host": OWN_HOST, b"origin": b"moz-extension://8080"}, True, False),
        ({b"host": OWN_HOST, b"sec-fetch-site": b"cross-site"}, True, False),
        ({b"host": OWN_HOST, b"sec-fetch-site": b"same-site"}, True, False),
        ({b"host": OWN_HOST, b"sec-fetch-site": b"anything else"}, True, False),
        # DNS rebinding: a foreign name resolves to this host.
        ({b"host": b"evil.example:8080"}, True, False),
        ({b"host": b"evil.example:8080", b"origin": b"http://evil.example:8080"}, True, False),
        ({}, True, False),
        # Other addresses, under any name, and behind a TLS proxy.
        ({b"host": b"memory.corp"}, False, True),
        ({b"host": b"10.0.0.7:8080", b"origin": b"http://10.0.0.7:8080"}, False, True),
        ({b"host": b"memory.corp", b"origin": b"https://memory.corp"}, False, True),
        ({b"host": b"memory.corp", b"origin": b"https://evil.example"}, False, False),
        ({b"host": b"memory.corp", b"origin": b"null"}, False, False),
        ({b"host": b"memory.corp", b"sec-fetch-site": b"cross-site"}, False, False),
    ],
)
def test_foreign_pages_are_rejected(headers: dict[bytes, bytes], is_local: bool, is_allowed: bool) -> None:
    assert (foreign_reason(headers, scheme="http", is_local=is_local) is None) is is_allowed


@pytest.mark.parametrize(
    ("dest", "mode", "is_page", "is_allowed"),
    [
        (b"document", b"navigate", True, True),
        (b"iframe", b"navigate", True, False),
        (b"script", b"no-cors", True, False),
        (b"document", b"navigate", False, False),
    ],
)
def test_only_page_navigation_may_be_cross_site(dest: bytes, mode: bytes, is_page: bool, is_allowed: bool) -> None:
    headers = {b"host": OWN_HOST, b"sec-fetch-site": b"cross-site", b"sec-fetch-mode": mode, b"sec-fetch-dest": dest}

    assert (foreign_reason(headers, scheme="http", is_local=True, is_page=is_page) is None) is is_allowed


def test_reason_is_short_printable_ascii() -> None:
    reason = foreign_reason({b"host": b"\x1b[2Jevil\r\n\xff" + b"x" * 9000}, scheme="http", is_local=True)

    assert reason is not None
    assert reason.isascii()
    assert reason.isprintable()
    assert len(reason) < 300

"""Whose page a request comes from, by what a browser writes and no page can choose."""

import pytest

from agentmemory_operator.runtime.rules.web_origin import foreign_reason, is_local_host

OURS = b"127.0.0.1:8080"


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8080", "LOCALHOST:8080", "localhost.:8080", "api.localhost:8080"),
        *("127.0.0.1", "127.0.0.1:8080", "127.0.0.1:9000", "127.8.9.1:1", "[::1]", "[::1]:8080"),
    ],
)
def test_a_host_of_this_machine(host: str) -> None:
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
def test_a_host_of_another(host: str) -> None:
    assert not is_local_host(host.encode())


@pytest.mark.parametrize(
    ("sent", "is_local", "passes"),
    [
        # As curl, an SDK or a script asks.
        ({b"host": OURS}, True, True),
        ({b"host": OURS, b"sec-fetch-mode": b"cors"}, True, True),
        # As a browser asks: a typed address, then what its page loads and sends.
        ({b"host": OURS, b"sec-fetch-site": b"none", b"sec-fetch-mode": b"navigate"}, True, True),
        ({b"host": OURS, b"sec-fetch-site": b"same-origin"}, True, True),
        ({b"host": OURS, b"origin": b"http://127.0.0.1:8080", b"sec-fetch-site": b"same-origin"}, True, True),
        ({b"host": b"LocalHost:8080", b"origin": b"http://localhost:8080"}, True, True),
        # A page of another site, another port, another scheme, of a file, of an extension.
        ({b"host": OURS, b"origin": b"http://evil.example"}, True, False),
        ({b"host": OURS, b"origin": b"http://localhost:8080"}, True, False),
        ({b"host": OURS, b"origin": b"http://127.0.0.1:3000"}, True, False),
        ({b"host": OURS, b"origin": b"https://127.0.0.1:8080"}, True, False),
        ({b"host": OURS, b"origin": b"http://127.0.0.1:8080.evil.example"}, True, False),
        ({b"host": OURS, b"origin": b"null"}, True, False),
        ({b"host": OURS, b"origin": b""}, True, False),
        ({b"host": OURS, b"origin": b"moz-extension://8080"}, True, False),
        ({b"host": OURS, b"sec-fetch-site": b"cross-site"}, True, False),
        ({b"host": OURS, b"sec-fetch-site": b"same-site"}, True, False),
        ({b"host": OURS, b"sec-fetch-site": b"anything else"}, True, False),
        # Its name leads here.
        ({b"host": b"evil.example:8080"}, True, False),
        ({b"host": b"evil.example:8080", b"origin": b"http://evil.example:8080"}, True, False),
        ({}, True, False),
        # On other addresses, by whatever name, and behind what ends TLS.
        ({b"host": b"memory.corp"}, False, True),
        ({b"host": b"10.0.0.7:8080", b"origin": b"http://10.0.0.7:8080"}, False, True),
        ({b"host": b"memory.corp", b"origin": b"https://memory.corp"}, False, True),
        ({b"host": b"memory.corp", b"origin": b"https://evil.example"}, False, False),
        ({b"host": b"memory.corp", b"origin": b"null"}, False, False),
        ({b"host": b"memory.corp", b"sec-fetch-site": b"cross-site"}, False, False),
    ],
)
def test_whose_page_asks(sent: dict[bytes, bytes], is_local: bool, passes: bool) -> None:
    assert (foreign_reason(sent, scheme="http", is_local=is_local) is None) is passes


@pytest.mark.parametrize(
    ("dest", "mode", "is_page", "passes"),
    [
        (b"document", b"navigate", True, True),
        (b"iframe", b"navigate", True, False),
        (b"script", b"no-cors", True, False),
        (b"document", b"navigate", False, False),
    ],
)
def test_a_link_to_a_page_may_be_followed_and_nothing_else(
    dest: bytes, mode: bytes, is_page: bool, passes: bool
) -> None:
    sent = {b"host": OURS, b"sec-fetch-site": b"cross-site", b"sec-fetch-mode": mode, b"sec-fetch-dest": dest}

    assert (foreign_reason(sent, scheme="http", is_local=True, is_page=is_page) is None) is passes


def test_what_was_sent_is_told_short_and_in_ascii() -> None:
    told = foreign_reason({b"host": b"\x1b[2Jevil\r\n\xff" + b"x" * 9000}, scheme="http", is_local=True)

    assert told is not None
    assert told.isascii()
    assert told.isprintable()
    assert len(told) < 300

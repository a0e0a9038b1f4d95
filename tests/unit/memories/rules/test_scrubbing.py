"""Scrubbing of secrets: complete, without false positives, in linear time."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.adapters.detect_secrets_rules import library_rules
from agentmemory_operator.memories.rules import scrubbing
from agentmemory_operator.memories.rules.scrubbing import SecretRule
from agentmemory_operator.memories.rules.secret_patterns import OWN_RULES, PREFIXED
from agentmemory_operator.runtime.tasks import run_without_pause
from tests.support.spec.golden import read_table

RULES = (*library_rules(), *OWN_RULES)
TABLE = read_table("secrets.yaml")
SECRETS: list[dict[str, Any]] = TABLE["secrets"]
LOOKALIKES: list[str] = TABLE["lookalikes"]
MIB = 1 << 20


def scrub(text: str, rules: Sequence[SecretRule] = RULES) -> scrubbing.ScrubbedText:
    return run_without_pause(scrubbing.scrub(text, rules))


def _text(entry: dict[str, Any]) -> str:
    return "".join(entry["parts"])


@pytest.mark.parametrize("entry", SECRETS, ids=lambda entry: str(entry["after"])[:40])
def test_secret_is_replaced_by_its_marker(entry: dict[str, Any]) -> None:
    scrubbed = scrub(_text(entry))
    assert (scrubbed.text, scrubbed.kinds) == (entry["after"], {entry["kind"]})


@pytest.mark.parametrize("text", LOOKALIKES, ids=lambda text: str(text)[:40])
def test_lookalike_is_kept(text: str) -> None:
    assert scrub(text) == scrubbing.ScrubbedText(text)


def test_table_has_enough_cases() -> None:
    assert len(SECRETS) >= 60
    assert len(LOOKALIKES) >= 60


PIECES = (
    [_text(entry) for entry in SECRETS]
    + LOOKALIKES
    + ["[REDACTED:jwt]", "password", ": ", "=", '"', "\n", "eyJ", "sk-"]
)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=12), max_size=8), st.sampled_from(["", " ", "\n", ".", "@"]))
def test_scrubbing_is_idempotent(pieces: list[str], between: str) -> None:
    once = scrub(between.join(pieces)).text
    assert scrub(once) == scrubbing.ScrubbedText(once)


@given(st.lists(st.sampled_from(LOOKALIKES), max_size=4), st.sampled_from(SECRETS))
def test_other_lines_are_unchanged(lines: list[str], entry: dict[str, Any]) -> None:
    text = "\n".join([*lines, _text(entry), *lines])
    assert scrub(text).text == "\n".join([*lines, entry["after"], *lines])


ADVERSARIAL = [
    *(prefix for _, prefix, _ in PREFIXED),
    *(_text(entry) for entry in SECRETS),
    "eyJ",
    "eyJ.",
    "eyJaaaaaaaaa.",
    "a",
    "a:",
    "://",
    "a://",
    "a://a:",
    "://a:a@",
    "://:",
    "password",
    "password:",
    "password is ",
    "password for a ",
    "password=,",
    "password=,a",
    'password="',
    "--",
    "--password ",
    "-u a:",
    "bearer ",
    "token",
    "token:",
    "api",
    "api_key=",
    "pass=",
    "seed phrase: a ",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----\n" + "A" * 64,
    "Private-Lines: 1\n",
    "A" * 16 + "\n",
    "AKIA",
    "aws",
    "aws key ",
    "AccountKey=",
    "M.",
    "MTIz",
    "0",
    "0:",
    "ghp_",
    "glpat-",
    "SG.",
    "xoxb-1-",
    "sq0csp-",
    "SK",
    "pypi-AgEIcHlwaS5vcmc",
    "https://hooks.slack.com/services/T",
    "authorization: basic ",
    "?sig=",
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.kind} {rule.pattern.pattern[:30]}")
def test_rule_runs_in_linear_time(rule: SecretRule) -> None:
    """A text 16 times as long takes about 16 times as long; a quadratic rule takes 256 times."""
    for piece in ADVERSARIAL:
        text = piece * (MIB // 16 // len(piece))
        began = time.process_time()
        scrub(text, [rule])
        assert time.process_time() - began < 1.0, piece


@pytest.mark.parametrize("entry", SECRETS, ids=lambda entry: str(entry["after"])[:40])
def test_secret_across_short_windows_is_found(entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Short windows overlap like long ones and take a tenth of the time."""
    monkeypatch.setattr(scrubbing, "WINDOW", 6 << 10)
    monkeypatch.setattr(scrubbing, "OVERLAP", 2 << 10)
    assert_found_across_windows(entry)


@pytest.mark.parametrize("entry", SECRETS[::20], ids=lambda entry: str(entry["after"])[:40])
def test_secret_across_real_windows_is_found(entry: dict[str, Any]) -> None:
    assert_found_across_windows(entry)


def assert_found_across_windows(entry: dict[str, Any]) -> None:
    """Place the secret at, before and after the end of a window."""
    filling = "- it rained\n" * (scrubbing.WINDOW // 12 + 1)
    for before in (0, 1, 5, 20, 1000, scrubbing.OVERLAP - 200):
        text = filling[: scrubbing.WINDOW - before - len(_text(entry)) // 2 - 1] + "\n"
        assert scrub(text + _text(entry) + "\n" + filling).text == text + entry["after"] + "\n" + filling, before


def test_word_longer_than_a_window_is_replaced() -> None:
    assert scrub("a sk-" + "a1" * scrubbing.WINDOW + " b").text == "a [REDACTED:api-key] b"


def test_long_text_is_read_in_short_steps() -> None:
    """A step applies one rule to one window, so the number of steps grows linearly."""
    steps = [sum(1 for _ in scrubbing.scrub("password " * (count * scrubbing.WINDOW // 9), RULES)) for count in (1, 16)]

    assert 16 * steps[0] <= steps[1] <= 24 * steps[0]


@pytest.mark.parametrize(
    "value",
    [{"password": "a1b2c3 " * 400}, {"p" * MIB: ["a"] * 2000}, {"password": ["a"] * 2000}],
    ids=["a long value", "a long key", "many values"],
)
def test_value_is_read_once_with_its_key(value: dict[str, Any]) -> None:
    """Read with its full key, each of 2,000 values under a key of 1 MiB would cost a MiB."""
    began = time.process_time()
    run_without_pause(scrubbing.scrub_object(value, RULES))

    assert time.process_time() - began < 2


def test_long_value_is_scrubbed_by_key_and_content() -> None:
    value = "x1" * 300 + " and " * 2000 + "password: hunter2 " + "and " * 20_000
    scrubbed = run_without_pause(scrubbing.scrub_object({"token": value}, RULES)).value["token"]

    assert scrubbed.startswith("[REDACTED:token]")
    assert "password: [REDACTED:password] " in scrubbed
    assert scrubbed.endswith("and " * 20_000)

"""Secrets leave the text, what looks like one stays, and neither takes long."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.adapters.detect_secrets_rules import library_rules
from agentmemory_operator.domain import scrubbing
from agentmemory_operator.domain.scrubbing import Rule
from agentmemory_operator.domain.secret_rules import OWN_RULES, PREFIXED

RULES = (*library_rules(), *OWN_RULES)
TABLE = yaml.safe_load((Path(__file__).parents[2] / "golden/secrets.yaml").read_text())
SECRETS: list[dict[str, Any]] = TABLE["secrets"]
LOOKALIKES: list[str] = TABLE["lookalikes"]
MIB = 1 << 20

scrub = partial(scrubbing.scrub, rules=RULES)


def _text(entry: dict[str, Any]) -> str:
    return "".join(entry["parts"])


@pytest.mark.parametrize("entry", SECRETS, ids=lambda entry: str(entry["after"])[:40])
def test_a_secret_becomes_the_marker_of_its_kind(entry: dict[str, Any]) -> None:
    scrubbed = scrub(_text(entry))
    assert (scrubbed.text, scrubbed.kinds) == (entry["after"], {entry["kind"]})


@pytest.mark.parametrize("text", LOOKALIKES, ids=lambda text: str(text)[:40])
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert scrub(text) == scrubbing.Scrubbed(text)


def test_the_table_is_as_large_as_it_was_agreed() -> None:
    assert len(SECRETS) >= 60
    assert len(LOOKALIKES) >= 60


PIECES = (
    [_text(entry) for entry in SECRETS]
    + LOOKALIKES
    + ["[REDACTED:jwt]", "password", ": ", "=", '"', "\n", "eyJ", "sk-"]
)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=12), max_size=8), st.sampled_from(["", " ", "\n", ".", "@"]))
def test_scrubbing_again_changes_nothing(pieces: list[str], between: str) -> None:
    once = scrub(between.join(pieces)).text
    assert scrub(once) == scrubbing.Scrubbed(once)


@given(st.lists(st.sampled_from(LOOKALIKES), max_size=4), st.sampled_from(SECRETS))
def test_other_lines_stay_as_they_are(lines: list[str], entry: dict[str, Any]) -> None:
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
def test_a_rule_reads_long_texts_in_linear_time(rule: Rule) -> None:
    """Sixteen times the text may take sixteen times as long and some; what is quadratic takes 256 times."""
    for piece in ADVERSARIAL:
        text = piece * (MIB // 16 // len(piece))
        began = time.process_time()
        scrubbing.scrub(text, [rule])
        assert time.process_time() - began < 1.0, piece

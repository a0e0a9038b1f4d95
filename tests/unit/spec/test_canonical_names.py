import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.spec.caller_rights import Caller, Delegation, Scopes, Verb, scopes_of
from agentmemory_operator.spec.canonical_names import canonical, is_blank
from agentmemory_operator.spec.effective.settings import subjects_of
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.spec.documents import agent_document

COMPOSED, DECOMPOSED = "Zo\u00eb", "Zoe\u0308"
# Format characters that are visible nevertheless: signs before numbers.
SHOWN_FORMATS = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}


@pytest.mark.parametrize("listed", [COMPOSED, DECOMPOSED])
@pytest.mark.parametrize("requested", [COMPOSED, DECOMPOSED])
def test_rights_hold_for_both_unicode_forms(listed: str, requested: str) -> None:
    subject = {"kind": "ServiceAccount", "namespace": "agents", "name": "app", "verbs": ["read", "delegate"]}
    document = agent_document("probe", access={"subjects": [subject | {"users": [listed]}]})
    subjects = subjects_of(parse_agent_memory(document).spec.access)

    scopes = scopes_of(Caller("agents", "app"), subjects)
    token = Delegation("probe", "agents", "", requested, frozenset({Verb.READ}))
    token_scopes = scopes_of(Caller("agents", "app", delegation=token), subjects)

    assert scopes.allows(requested)
    assert not scopes.allows("Zoe")
    assert token_scopes.allows(listed)
    assert token_scopes.allows(requested)
    assert not token_scopes.allows("Zoe")


def test_only_names_too_long_for_any_field_are_left_as_they_are() -> None:
    """A run of marks takes quadratic time: minutes for a request of 1 MiB."""
    longest, too_long = "\u03b1\u0313\u0301\u0345" * 320, "a" + "\u0301\u0323" * 1_000

    assert canonical(longest) == "\u1f84" * 320
    assert canonical(too_long) == too_long != unicodedata.normalize("NFC", too_long)


def test_scope_is_checked_in_canonical_form() -> None:
    kelvin = "group:\u212a"

    assert canonical(kelvin) == "group:K"
    assert not Scopes(names=frozenset({"group:L"})).allows(kelvin)
    assert Scopes(names=frozenset({"group:K"})).allows(kelvin)


@given(st.text())
def test_canonical_name_is_nfc_and_stable(name: str) -> None:
    spelled = [unicodedata.normalize(form, name) for form in ("NFC", "NFD")]

    assert {canonical(spelling) for spelling in [name, *spelled]} == {spelled[0]}


def test_invisible_characters_are_blank() -> None:
    invisible = {
        chr(code)
        for code in range(sys.maxunicode)
        if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zs", "Zl", "Zp") and code not in SHOWN_FORMATS
    }
    named = set("\u00ad\u034f\u115f\u1160\u17b4\u180b\u200d\u2800\u3164\ufe0f\ufeff\uffa0\U000e0041\U000e0100")

    assert [f"{ord(sign):x}" for sign in invisible | named if not is_blank(sign)] == []
    assert is_blank("".join(sorted(invisible | named)))


@pytest.mark.parametrize("text", ["a", "\u200ba", "\u0301", "\u4e00", "\U0001f600", "\u2764\ufe0f", "\u0600", "-"])
def test_visible_text_is_not_blank(text: str) -> None:
    assert not is_blank(text)

"""Which namespace a slug belongs to, as collections prove it."""

from dataclasses import replace

from agentmemory_operator.collections.rules.claims import (
    MAX_CONNECTIONS,
    MAX_WITHOUT_OBJECT,
    ClaimEvidence,
    ClaimSet,
    SlugClaim,
    claim_from_json,
    claim_to_json,
    derive_claims,
)
from tests.support.spec.plans import desired_of

MARKER = desired_of().marker
assert MARKER is not None


def witness(namespace: str, *, slug: str = "bot", created: str = "", is_live: bool = True) -> ClaimEvidence:
    assert MARKER is not None
    marker = replace(MARKER, namespace=namespace, uid=f"uid-{namespace}")
    return ClaimEvidence(slug=slug, marker=marker, connection="infra/main", created=created, is_live=is_live)


def owner(*witnesses: ClaimEvidence) -> str:
    return derive_claims(witnesses)["bot"].namespace


def test_the_marker_says_whose_a_slug_is_though_the_object_is_gone() -> None:
    assert derive_claims([witness("alpha")]) == {
        "bot": SlugClaim(namespace="alpha", uid="uid-alpha", connections=("infra/main",))
    }


def test_of_several_the_oldest_object_has_it_then_what_the_alias_leads_to_whatever_the_order() -> None:
    old, young = witness("zeta", created="2026-01-01T00:00:00Z"), witness("alpha", created="2026-02-01T00:00:00Z")
    left, live = witness("beta", is_live=False), witness("gamma")

    for order in ((old, young, left, live), (live, left, young, old)):
        assert owner(*order) == "zeta"
        assert owner(*(one for one in order if one in (left, live))) == "gamma"


def test_a_server_that_lists_endless_collections_claims_only_so_many() -> None:
    endless = [witness("loud", slug=f"a{number}") for number in range(MAX_WITHOUT_OBJECT + 5)]
    real = witness("loud", slug="real", created="2026-01-01T00:00:00Z")

    claims = derive_claims([*endless, real, witness("quiet", slug="kept")])

    assert len(claims) == MAX_WITHOUT_OBJECT + 2
    assert {"real", "kept"} <= claims.keys()


def test_no_claim_counts_before_the_set_is_complete() -> None:
    claims = {"bot": SlugClaim(namespace="alpha", uid="u")}

    assert ClaimSet(claims=claims).namespace_of("bot") is None
    assert ClaimSet(claims=claims, is_complete=True).namespace_of("bot") == "alpha"
    assert ClaimSet(claims=claims, is_complete=True).namespace_of("other") is None


def test_a_claim_remembers_the_connections_that_were_used_last() -> None:
    claim = SlugClaim(namespace="alpha", uid="u")
    for number in range(6):
        claim = claim.used_by("v", f"infra/{number}")
    again = claim.used_by("v", "infra/3")

    assert claim.connections == ("infra/5", "infra/4", "infra/3", "infra/2")
    assert again.connections == ("infra/3", "infra/5", "infra/4", "infra/2")
    assert len(again.connections) == MAX_CONNECTIONS
    assert claim_from_json(claim_to_json(again)) == again
    closed = replace(again, min_epoch=7).used_by("other", "infra/other")
    assert claim_from_json(claim_to_json(closed)) == closed
    assert closed.min_epoch == 7


def test_what_is_no_claim_is_none() -> None:
    for broken in (None, [], "alpha", {}, {"namespace": 7}, {"uid": "u"}):
        assert claim_from_json(broken) is None
    assert claim_from_json({"namespace": "a", "connections": 3}) == SlugClaim(namespace="a", uid="")

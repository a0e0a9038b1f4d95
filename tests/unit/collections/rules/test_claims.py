"""Claims of slugs derived from collection markers."""

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


def build_evidence(namespace: str, *, slug: str = "bot", created: str = "", is_live: bool = True) -> ClaimEvidence:
    assert MARKER is not None
    marker = replace(MARKER, namespace=namespace, uid=f"uid-{namespace}")
    return ClaimEvidence(slug=slug, marker=marker, connection="infra/main", created=created, is_live=is_live)


def owner(*evidence: ClaimEvidence) -> str:
    return derive_claims(evidence)["bot"].namespace


def test_marker_claims_slug_without_object() -> None:
    assert derive_claims([build_evidence("alpha")]) == {
        "bot": SlugClaim(namespace="alpha", uid="uid-alpha", connections=("infra/main",))
    }


def test_oldest_object_then_live_collection_wins() -> None:
    old, young = (
        build_evidence("zeta", created="2026-01-01T00:00:00Z"),
        build_evidence("alpha", created="2026-02-01T00:00:00Z"),
    )
    left, live = build_evidence("beta", is_live=False), build_evidence("gamma")

    for order in ((old, young, left, live), (live, left, young, old)):
        assert owner(*order) == "zeta"
        assert owner(*(item for item in order if item in (left, live))) == "gamma"


def test_collections_without_object_are_limited() -> None:
    endless = [build_evidence("loud", slug=f"a{number}") for number in range(MAX_WITHOUT_OBJECT + 5)]
    real = build_evidence("loud", slug="real", created="2026-01-01T00:00:00Z")

    claims = derive_claims([*endless, real, build_evidence("quiet", slug="kept")])

    assert len(claims) == MAX_WITHOUT_OBJECT + 2
    assert {"real", "kept"} <= claims.keys()


def test_incomplete_set_has_no_claims() -> None:
    claims = {"bot": SlugClaim(namespace="alpha", uid="u")}

    assert ClaimSet(claims=claims).namespace_of("bot") is None
    assert ClaimSet(claims=claims, is_complete=True).namespace_of("bot") == "alpha"
    assert ClaimSet(claims=claims, is_complete=True).namespace_of("other") is None


def test_claim_keeps_latest_connections() -> None:
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


def test_invalid_claim_is_none() -> None:
    for broken in (None, [], "alpha", {}, {"namespace": 7}, {"uid": "u"}):
        assert claim_from_json(broken) is None
    assert claim_from_json({"namespace": "a", "connections": 3}) == SlugClaim(namespace="a", uid="")

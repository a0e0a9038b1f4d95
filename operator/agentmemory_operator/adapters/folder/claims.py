"""The claims of the development stack: one file beside the data."""

import json
from pathlib import Path

from agentmemory_operator.collections.rules.claims import NO_CLAIMS, ClaimSet, claim_from_json, claim_to_json
from agentmemory_operator.errors import TransientError


class FileClaims:
    """Implements ports.ClaimStore; one process at a time.

    Args:
        file: made with the first claim.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    async def load(self) -> ClaimSet:
        """What is stored; a file that cannot be read holds nothing, and the claims are made again."""
        try:
            document = json.loads(self._file.read_text(encoding="utf-8"))
            stored = {slug: claim_from_json(told) for slug, told in document["claims"].items()}
            unread = frozenset(map(str, document["unread"]))
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
            return NO_CLAIMS
        claims = {slug: claim for slug, claim in stored.items() if claim is not None}
        return ClaimSet(claims=claims, is_complete=True, unread=unread)

    async def save(self, claims: ClaimSet) -> None:
        """Write the file anew, in one step."""
        told = {slug: claim_to_json(claim) for slug, claim in sorted(claims.claims.items())}
        text = json.dumps({"claims": told, "unread": sorted(claims.unread)}, indent=2)
        new = self._file.with_suffix(".new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(text + "\n", encoding="utf-8")
            new.replace(self._file)
        except OSError as exc:
            raise TransientError(f"{self._file} cannot be written: {exc.strerror}") from exc

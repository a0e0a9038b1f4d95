"""Whether a user is erased: which memories are stored, and the receipts of the erasures."""

import asyncio
from datetime import UTC, datetime
from urllib.parse import quote

from agentmemory_operator.entrypoints.api.ui.api_view import ApiRefused, ApiView, Json

COVERS = "what this agent stores: memories of every type and state, earlier versions, and the user's name."
DOES_NOT_COVER = (
    "snapshots and other copies made before the erasure, which keep the memories until they are removed (a restore of"
    " such a snapshot erases them again), logs, or what other programs have read. See docs/forget.md, Copies."
)
HOW_TO_CHECK = (
    "sha256 of a receipt is the SHA-256 of the sorted ids of the erased memories, each followed by a line feed. Who has"
    " the ids, for example of an export from before, can compute it. See docs/forget.md, The receipt."
)


async def build_proof(view: ApiView, user_id: str) -> Json:
    """Return what is stored of a user, and the newest receipts.

    `erased` is the newest receipt of an erasure of the whole user, if nothing is stored of the user since; else None.

    Raises:
        ApiRefused: If the caller may not read memories of the user.
    """
    path = "/users/" + quote(user_id, safe="")
    stats, receipts, (user, problem) = await asyncio.gather(
        view.get("/stats", user_id=user_id), view.get("/receipts", user_id=user_id), view.try_get(path)
    )
    if problem and problem["status"] != 404:
        raise ApiRefused(problem["status"], problem)
    whole = [receipt for receipt in receipts["results"] if receipt["scope"] == "user"]
    return {
        "agent": view.agent,
        "user_id": user_id,
        "user_hash": view.hash_user(user_id),
        "checked_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "memories": stats["total"],
        "states": stats["states"],
        "has_name": bool(user and user["name"]),
        "erased": whole[0] if whole and not stats["total"] and not user else None,
        "receipts": receipts["results"],
        "covers": COVERS,
        "does_not_cover": DOES_NOT_COVER,
        "how_to_check": HOW_TO_CHECK,
    }

"""Print the token for an agent's points from the Secret that the operator maintains for the retrieval API.

kubectl -n agentmemory-system get secret agentmemory-agent-support-bot -o json > secret.json
python examples/qdrant-client/token_of.py < secret.json
"""

import base64
import json
import sys


def subject_of(value: str) -> str | None:
    """Return the collection name in a token, or None if the value is no token. Qdrant checks the signature."""
    parts = value.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return None
    return claims.get("sub") if isinstance(claims, dict) else None


secret = json.load(sys.stdin)
alias = "agent_memory_" + secret["metadata"]["labels"]["agentmemory.dev/agent"]
values = [base64.b64decode(value).decode() for value in secret.get("data", {}).values()]
tokens = [value for value in values if subject_of(value) == alias]
if not tokens:
    sys.exit("no token is in this Secret: status.access.qdrant of the AgentMemory says why")
print(tokens[0])

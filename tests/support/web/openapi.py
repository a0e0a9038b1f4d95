"""Write the API's OpenAPI document: `python -m tests.support.web.openapi FILE`."""

import json
import sys
from pathlib import Path

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.user_tokens import JwtUserTokens
from agentmemory_operator.agents.user_tokens import UserTokens
from agentmemory_operator.entrypoints.api.app import create_app
from agentmemory_operator.entrypoints.api.identity.auth import OpenGuard
from tests.support.web.api_stack import FixedSigningKey, build_stack_services

# Address of a Qdrant server that is never contacted.
NO_QDRANT = "http://127.0.0.1:9"

if __name__ == "__main__":
    tokens = UserTokens(FixedSigningKey(), JwtUserTokens(), SystemClock(), has_identities=False)
    app = create_app(build_stack_services(NO_QDRANT), OpenGuard(), tokens)
    Path(sys.argv[1]).write_text(json.dumps(app.openapi(), indent=1) + "\n")

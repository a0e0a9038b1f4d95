"""Run mem0's own suites against the API: `python -m tests.support.mem0_suite CHECKOUT`.

They are the integration tests of its TypeScript client and the tests of its Zapier integration. Needs Node with npm. In
the TypeScript suite the host of each client is replaced, in the checkout: it cannot be set from outside.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from agentmemory_operator.entrypoints.api.identity.auth import TokenGuard
from tests.support.web.api_stack import create_collection, running_api
from tests.support.web.dev_qdrant import dev_qdrant
from tests.support.web.mem0_site import OPEN

KEY = "mem0-suite"
CREATIONS = ("new MemoryClient({ apiKey: API_KEY! })", "new MemoryClient({ apiKey })")
WRONG_KEY = 'new MemoryClient({ apiKey: "invalid-key-12345" })'
# Suite and command. Those of `management.test.ts` are about projects and webhooks, except the users.
SUITES = (
    ("mem0-ts", ("--config", "jest.integration.config.js", "--testPathIgnorePatterns", "management")),
    ("mem0-ts", ("--config", "jest.integration.config.js", "management", "-t", "user management")),
    ("integrations/zapier-mem0", ("--testTimeout", "180000")),
)


def replace_hosts(folder: Path) -> None:
    """Give each client of the TypeScript suite the host of the environment."""
    for path in (folder / "src/client/tests/integration").glob("*.ts"):
        text = path.read_text()
        for creation in (*CREATIONS, WRONG_KEY):
            text = text.replace(creation, f"{creation.removesuffix(' })')}, host: process.env.MEM0_BASE_URL }})")
        path.write_text(text)


def main() -> int:
    """Run the suites; return 1 if one failed."""
    parser = argparse.ArgumentParser(description="Run mem0's own suites against the API.")
    parser.add_argument("checkout", type=Path, help="checkout of github.com/mem0ai/mem0")
    checkout = parser.parse_args().checkout
    replace_hosts(checkout / "mem0-ts")
    failed = 0
    with tempfile.TemporaryDirectory() as data, dev_qdrant(Path(data)) as qdrant_url:
        create_collection(qdrant_url, OPEN)
        with running_api(qdrant_url, OPEN, guard=TokenGuard(KEY), serves_mem0=True) as stack:
            environment = {"MEM0_BASE_URL": f"{stack.api_url}/mem0/mem0-open", "MEM0_API_KEY": KEY}
            environment = os.environ | environment | {"MEM0_TELEMETRY": "false"}
            for name, arguments in SUITES:
                folder = checkout / name
                if not (folder / "node_modules").exists():
                    install = ("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--legacy-peer-deps")
                    subprocess.run(install, cwd=folder, check=True)
                tests = subprocess.run(("npx", "jest", *arguments, "--forceExit"), cwd=folder, env=environment)
                failed |= tests.returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Run the tests and the type check of adapters, each with its framework in an environment of its own.

`make test-adapters` calls this:

python -m client.tests.adapters.run [--newest] [NAME ...]
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import create_collection, running_api
from tests.support.web.dev_qdrant import dev_qdrant

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "client" / "tests" / "adapters"
ENVIRONMENTS = ROOT / ".adapters"
TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout")
AGENTS = (
    # Embeds offline; every result passes.
    agent_document("words", embedding={"provider": "wordllama", "dimensions": 64}),
    # Callers send vectors of 8 numbers.
    agent_document("numbers"),
)


def read_frameworks() -> dict[str, list[str]]:
    """Read the packages of each adapter at their lowest supported versions, by the adapter's name."""
    lines = (ROOT / "requirements" / "adapters.in").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {name: packages for name, *packages in rows}


def install(name: str, packages: list[str], *, is_newest: bool) -> Path:
    """Install an adapter with its framework into an environment of its own; return the environment's Python."""
    folder = ENVIRONMENTS / (f"{name}-newest" if is_newest else name)
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    # An environment that is complete stays as it is, unless there may be newer releases.
    stamp, content = folder / "installed", "\n".join([*packages, (ROOT / "client" / "pyproject.toml").read_text()])
    if not is_newest and stamp.exists() and stamp.read_text() == content:
        return python
    wanted = [package.partition("==")[0] for package in packages] if is_newest else packages
    upgrade = ["--upgrade", "--upgrade-strategy", "eager"] if is_newest else []
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *upgrade]
    subprocess.run([*command, *TOOLS, *wanted, "-e", f"{ROOT / 'client'}[{name.replace('_', '-')}]"], check=True)
    stamp.write_text(content)
    return python


def run_tests(name: str, python: Path, api_url: str) -> int:
    """Run the tests of one adapter; return the exit status of pytest."""
    command = [python, "-m", "pytest", "-c", FOLDER / "pytest.ini", "--confcutdir", FOLDER, FOLDER / f"test_{name}.py"]
    environment = os.environ | {"AGENTMEMORY_ADAPTERS_URL": api_url}
    return subprocess.run([*command, "-q", "-rs"], env=environment, cwd=ROOT).returncode


def check_types(name: str, python: Path) -> int:
    """Check the types of one adapter against those of its framework; return the exit status of mypy."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", ENVIRONMENTS / "mypy" / name]
    module = f"agentmemory_client.adapters.{name}"
    return subprocess.run([*command, "--python-executable", python, "-m", module], cwd=ROOT).returncode


def main() -> int:
    """Run the tests of the named adapters, or of all; return 1 if any failed."""
    parser = argparse.ArgumentParser(description="Run the tests of adapters with their frameworks.")
    parser.add_argument("names", nargs="*", help="adapters; all without any")
    parser.add_argument("--newest", action="store_true", help="install the newest releases of the frameworks")
    options = parser.parse_args()
    frameworks = read_frameworks()
    if unknown := set(options.names) - set(frameworks):
        parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(frameworks)}")
    failed = list[str]()
    with tempfile.TemporaryDirectory() as data, dev_qdrant(Path(data)) as qdrant_url:
        for document in AGENTS:
            create_collection(qdrant_url, document)
        with running_api(qdrant_url, *AGENTS) as stack:
            for name in options.names or frameworks:
                print(f"{name}:", flush=True)
                # One framework that cannot be installed keeps out none of the others.
                try:
                    python = install(name, frameworks[name], is_newest=options.newest)
                except subprocess.CalledProcessError:
                    failed.append(name)
                    continue
                if run_tests(name, python, stack.api_url) or check_types(name, python):
                    failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all adapters passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

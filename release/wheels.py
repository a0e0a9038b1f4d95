"""Build the wheels of client, development server and operator, and pack the TypeScript client: `make wheels`.

    usage: release/wheels.py TARGET [BACKEND]

TARGET is replaced. BACKEND is a folder with the packages of requirements/backend.txt; without it they are imported from
the environment that runs this. The TypeScript client is packed if `make client-ts` has built it.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROJECTS = {"agentmemory-client": "client", "agentmemory-operator": ".", "qdrant-devserver": "devserver"}
TYPESCRIPT = ROOT / "client-ts"


def build_wheels(target: pathlib.Path, backend: pathlib.Path | None = None) -> dict[str, pathlib.Path]:
    """Build the three wheels into a folder; return them by project. The same commit gives the same bytes."""
    environment = dict(os.environ)
    if backend:
        environment["PYTHONPATH"] = str(backend.resolve())
    if committed := commit_time():
        environment["SOURCE_DATE_EPOCH"] = committed
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target.resolve()))
    sources = [f"./{folder}" for folder in PROJECTS.values()]
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run((*pip, *build, *sources), cwd=ROOT, env=environment, check=True)
    return {name: next(target.glob(f"{name.replace('-', '_')}-*.whl")) for name in PROJECTS}


def commit_time() -> str:
    """Return the seconds of the last commit; empty if the sources are no checkout."""
    command = ("git", "log", "-1", "--format=%ct")
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return ""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def pack_typescript(target: pathlib.Path) -> None:
    """Pack the TypeScript client into a folder, if it is built and npm is there."""
    if shutil.which("npm") and (TYPESCRIPT / "dist" / "index.js").exists():
        pack = ("npm", "pack", "--silent", "--pack-destination", str(target.resolve()))
        subprocess.run(pack, cwd=TYPESCRIPT, check=True, stdout=subprocess.DEVNULL)


def build_all(target: pathlib.Path, backend: pathlib.Path | None = None) -> list[pathlib.Path]:
    """Replace a folder by one with all packages; return their files. If a build fails, the folder stays as it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = pathlib.Path(folder) / target.name
        built.mkdir()
        build_wheels(built, backend)
        pack_typescript(built)
        shutil.rmtree(target, ignore_errors=True)
        built.rename(target)
    return sorted(target.iterdir())


def main(arguments: list[str]) -> int:
    """Build into a folder and print its files."""
    target, *backend = map(pathlib.Path, arguments)
    print(*build_all(target, *backend), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

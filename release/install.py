"""Install the command `agentmemory` for a user, from this checkout: `make install`, `make uninstall`.

    usage: release/install.py [--remove]

The program and the locked packages are installed into a virtual environment in the user's data folder. `~/.local/bin`
gets links to its commands. The wheels are kept too, for `pip install` in other projects. A second run replaces all.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from release.commands import CheckFailed  # noqa: E402
from release.wheels import PIP, build_all  # noqa: E402

COMMANDS = ("agentmemory", "kubectl-agentmemory", "kubectl_complete-agentmemory")
LOCK = ROOT / "requirements" / "run.txt"


class Places:
    """Paths of a user's installation. The memories of `agentmemory dev` in the same folder are kept."""

    def __init__(self) -> None:
        home = pathlib.Path.home()
        data = pathlib.Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "agentmemory"
        self.program = data / "program"
        self.wheels = data / "wheels"
        self.memories = data / "dev"
        self.commands = home / ".local" / "bin"

    def links(self) -> dict[pathlib.Path, pathlib.Path]:
        """Return the target of each link.

        Raises:
            CheckFailed: If another file has the path of a link.
        """
        links = {self.commands / name: self.program / "bin" / name for name in COMMANDS}
        for link, target in links.items():
            if os.path.lexists(link) and not (link.is_symlink() and link.readlink() == target):
                raise CheckFailed(f"{link} is not a link of `make install`: remove it first")
        return links


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Print the name of a step, and its duration."""
    print(f"{what} ...", end=" ", flush=True)
    started = time.monotonic()
    yield
    print(f"{time.monotonic() - started:.1f} s", flush=True)


def install(places: Places) -> None:
    """Build the wheels and install them with the locked packages."""
    links = places.links()
    with step("building the wheels"):
        built = build_all(places.wheels)
    with step("installing the locked packages"):
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        venv.create(
            places.program, with_pip=False, symlinks=True, clear=not (places.program / "lib" / version).is_dir()
        )
        pip_install(places, "--require-hashes", "--requirement", str(LOCK))
    with step("installing the wheels"):
        wheels = [str(path) for path in built if path.suffix == ".whl"]
        pip_install(places, "--no-index", "--force-reinstall", *wheels)
    places.commands.mkdir(parents=True, exist_ok=True)
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def pip_install(places: Places, *options: str) -> None:
    """Install into the program's environment. Compiling all modules costs more than it saves: few are imported.

    Raises:
        CheckFailed: If pip fails; its own message is above.
    """
    interpreter = ("--python", str(places.program / "bin" / "python"))
    done = subprocess.run((*PIP, *interpreter, "install", "--no-compile", "--no-deps", *options))
    if done.returncode:
        raise CheckFailed("pip could not install the packages: see above")


def report(places: Places) -> None:
    """Print the installed paths, and a line for the shell's profile if it does not find the command."""
    print(f"\ncommand   {places.commands / COMMANDS[0]}")
    print(f"program   {places.program}")
    print(f"packages  {places.wheels}, for your own projects")
    print("remove    make uninstall")
    if str(places.commands) not in os.environ.get("PATH", "").split(os.pathsep):
        print(f'\n{places.commands} is not on your PATH yet:\n  export PATH="{places.commands}:$PATH"')


def remove(places: Places) -> None:
    """Remove all files of `install`. Memories are kept."""
    for path in [path for path in places.links() if path.is_symlink()]:
        path.unlink()
        print(f"removed {path}")
    for folder in (places.program, places.wheels):
        if folder.exists():
            shutil.rmtree(folder)
            print(f"removed {folder}")
    if places.memories.exists():
        print(f"kept    {places.memories}: the memories of `agentmemory dev`")


def main(arguments: list[str]) -> int:
    """Install, or remove."""
    places = Places()
    try:
        if arguments == ["--remove"]:
            remove(places)
        else:
            install(places)
            report(places)
    except CheckFailed as failed:
        print(f"\nmake install: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

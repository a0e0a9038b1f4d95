"""The home folder of a user after `make install`: our packages from the wheels, all others from this environment."""

import os
import pathlib
import subprocess
import sys
import sysconfig

from tests.support.programs import ROOT, clean_environment

OURS = ("agentmemory", "qdrant_devserver", "_agentmemory", "_qdrant_devserver", "_editable", "__editable__")
PIP = '#!/bin/sh\nexec "{python}" -m pip "$@"\n'


class UserHome:
    """A home folder. The sources of this checkout cannot be imported in it, and nothing is downloaded."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.data = path / ".local" / "share" / "agentmemory"
        self._others = path / "other-packages"
        self._link_other_packages()

    def _link_other_packages(self) -> None:
        """Link all installed packages except ours, so that pip finds the locked versions installed."""
        self._others.mkdir()
        for entry in pathlib.Path(sysconfig.get_path("purelib")).iterdir():
            if not entry.name.startswith(OURS) and entry.suffix != ".pth":
                (self._others / entry.name).symlink_to(entry)

    def environment(self, *folders: pathlib.Path) -> dict[str, str]:
        """Return the environment of a terminal in which the folders are on the PATH."""
        places = [*map(str, folders), str(self.path / ".local" / "bin"), os.environ["PATH"]]
        return clean_environment() | {
            "HOME": str(self.path),
            "NO_PROXY": "*",
            "PATH": os.pathsep.join(places),
            "PIP_NO_INDEX": "1",
            "PYTHONPATH": "",
            "XDG_DATA_HOME": "",
        }

    def create_venv(self, folder: pathlib.Path) -> pathlib.Path:
        """Create a virtual environment as `python3 -m venv` does, in less time; return its programs."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        [packages] = folder.glob("lib/python*/site-packages")
        (packages / "other-packages.pth").write_text(f"{self._others}\n")
        pip = folder / "bin" / "pip"
        pip.write_text(PIP.format(python=folder / "bin" / "python"))
        pip.chmod(0o755)
        return folder / "bin"

    def install(self) -> str:
        """Install as `make install` does; return its output."""
        if not (self.data / "program").exists():
            self.create_venv(self.data / "program")
        command = [sys.executable, str(ROOT / "release" / "install.py")]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def unpack_npm(self, package: str, folder: pathlib.Path) -> None:
        """Unpack a package that `make install` has packed as npm does, beside the packages that it needs."""
        [packed] = (self.data / "wheels").glob(package)
        modules = folder / "node_modules"
        (modules / ".bin").mkdir(parents=True)
        subprocess.run(["tar", "-xf", str(packed), "-C", str(folder)], check=True)
        (folder / "package").rename(modules / "agentmemory-client")
        installed = ROOT / "client-ts" / "node_modules"
        for name in ("openapi-fetch", "openapi-typescript-helpers"):
            (modules / name).symlink_to(installed / name)
        (modules / ".bin" / "tsc").symlink_to(installed / "typescript" / "bin" / "tsc")

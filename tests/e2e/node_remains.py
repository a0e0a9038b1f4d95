"""Folder and cgroup of a run of `make e2e-node`, and removal of those that a killed run left.

Each run locks a file in its folder, and the kernel releases the lock with the process. So a folder with an
unlocked file belongs to a killed run. Its cgroup has the name of the folder.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

from tests.support.patience import wait_until

CGROUPS = pathlib.Path("/sys/fs/cgroup")
CONTROLLER_NAMES = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")
# A hierarchy without a controller. containerd requires it on machines that have it.
SYSTEMD = "systemd"
PREFIX, MARKER = "agentmemory-e2e-", "lock-of-e2e-node"
MOUNTS = pathlib.Path("/proc/self/mounts")
# The kernel ends the processes of a killed run one after the other.
ENDED_S = 20.0


@contextlib.contextmanager
def own_folder() -> Iterator[pathlib.Path]:
    """Create a folder, locked against `remove_leftovers` of another run; remove it at the end."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=PREFIX))
    with (folder / MARKER).open("w") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            _remove_folder(folder)


@contextlib.contextmanager
def own_cgroup(name: str) -> Iterator[None]:
    """Move this process into a cgroup of its own inside the context; the end removes the cgroup."""
    homes = own_cgroups()
    made = {hierarchy: homes[hierarchy] / name for hierarchy in hierarchies()}
    try:
        for hierarchy, folder in made.items():
            folder.mkdir()
            if hierarchy == "cpuset":
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (folder / file).write_text((folder.parent / file).read_text())
            (folder / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        for folder in made.values():
            if folder.exists():
                (folder.parent / "cgroup.procs").write_text(str(os.getpid()))
                remove_cgroup(folder)


def hierarchies() -> list[str]:
    """Return the names of the cgroup hierarchies that a node needs: one for each controller, and systemd's."""
    return [*CONTROLLER_NAMES, *([SYSTEMD] if (CGROUPS / SYSTEMD).exists() else [])]


def own_cgroups() -> dict[str, pathlib.Path]:
    """Return the cgroup of this process by hierarchy."""
    homes = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        names = [name.removeprefix("name=") for name in controllers.split(",")]
        homes.update({name: CGROUPS / name / path.lstrip("/") for name in names})
    return homes


def remove_cgroup(folder: pathlib.Path) -> None:
    """Remove a cgroup and those in it, which must have no processes."""
    for path in sorted(folder.rglob("*/"), reverse=True):
        path.rmdir()
    folder.rmdir()


def remove_leftovers(cgroups: pathlib.Path = CGROUPS) -> list[str]:
    """Remove the folders and cgroups of killed runs; return the folders' names.

    Raises:
        AssertionError: If a cgroup still has processes after 20 s.
        OSError: If a folder has a mount that cannot be removed.
    """
    removed = []
    for marker in pathlib.Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{MARKER}"):
        # Others may create folders here too.
        if any(path.is_symlink() or path.stat().st_uid != os.geteuid() for path in (marker, marker.parent)):
            continue
        with marker.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            for folder in cgroups.glob(f"*/**/{marker.parent.name}"):
                wait_until(lambda folder=folder: _is_removed(folder), seconds=ENDED_S, what=f"the end of {folder}")
            _remove_folder(marker.parent)
        removed.append(marker.parent.name)
    return removed


def _is_removed(cgroup: pathlib.Path) -> bool:
    with contextlib.suppress(OSError):
        remove_cgroup(cgroup)
    return not cgroup.exists()


def _remove_folder(folder: pathlib.Path) -> None:
    """Remove a folder and its mounts, which a killed buildah leaves. Unmount first: a mount may be of the machine."""
    mounts = [line.split()[1] for line in MOUNTS.read_text().splitlines()]
    for mount in sorted((mount for mount in mounts if mount.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=True)
    shutil.rmtree(folder, ignore_errors=True)

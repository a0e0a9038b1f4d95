"""Files of ONNX models, and how the optional package `fastembed` opens them: no network unless allowed.

Embeddings on local CPUs run in their own pool of at most 4 threads, off the event loop. They wait only for each other,
and no other work waits for them.
"""

import asyncio
import glob
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, ParamSpec, TypeVar

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.cel.embedding import BAD_NAME, BAD_NAME_MESSAGE

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1), thread_name_prefix="embed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Location of the models.

    Attributes:
        folder: Folder with one subfolder per model, of the model's name. Downloads are stored there too. None: no
            folder.
        may_download: True if missing models may be downloaded from their publisher.
    """

    folder: Path | None = None
    may_download: bool = False


def find_subfolder(name: str, folder: Path | None) -> Path | None:
    """Return the subfolder of a model. None if there is none, or if its name is too long for the file system."""
    try:
        return folder / name if folder and (folder / name).is_dir() else None
    except OSError:
        return None


def has_fastembed_files(name: str, files: ModelFiles) -> bool:
    """Return whether fastembed is installed, and may download a model or finds it in `files`.

    A found model is a subfolder of its name, or an entry of fastembed's cache with the last part of the name.
    """
    if find_spec("fastembed") is None:
        return False
    if files.may_download or find_subfolder(name, files.folder):
        return True
    cached = f"*{glob.escape(PurePosixPath(name).name)}*"
    return files.folder is not None and any(files.folder.glob(cached))


def check_name(name: str, *, field: str) -> None:
    """Raise SpecInvalid unless a name is a relative path in its shortest form. Others could lead out of the folder.

    Args:
        field: Field of the object that names the model.
    """
    if re.search(BAD_NAME, f"/{name}/"):
        raise SpecInvalid("InvalidSpec", f"{field}: {BAD_NAME_MESSAGE}")


def check_openable(name: str, files: ModelFiles, *, field: str, instead: str) -> None:
    """Raise unless fastembed can open models, and `name` is allowed. Whether the model exists is not checked.

    Args:
        name: Name of the model; see `check_name`.
        files: Location of the models.
        field: Field of the object that requires the model.
        instead: Alternative remedy, for the message.

    Raises:
        SpecInvalid: If the name is not allowed, fastembed is not installed, or there is neither a folder nor permission
            to download.
    """
    check_name(name, field=field)
    if find_spec("fastembed") is None:
        message = (
            f"{field}: fastembed is not installed where the API runs: install agentmemory-operator[fastembed] there,"
            f" or {instead}"
        )
        raise SpecInvalid("InvalidSpec", message)
    if files.folder is None and not files.may_download:
        message = (
            f"{field}: no fastembed models found: set AGENTMEMORY_MODELS to a folder that contains {name}/, or allow"
            " downloads with AGENTMEMORY_MODEL_DOWNLOADS=yes"
        )
        raise SpecInvalid("InvalidSpec", message)


def open_model(
    kind: Callable[..., Any], name: str, files: ModelFiles, *, first_use: Callable[[Any], object], field: str
) -> Any:
    """Open a model and use it once: files of an incompatible export load, but fail at the first text.

    Args:
        kind: fastembed's class for this kind of model.
        files: Location of the models.
        first_use: Uses the model once.
        field: Field of the object that names the model.

    Raises:
        SpecInvalid: If the model does not exist, or its files are missing or unusable.
    """
    folder = find_subfolder(name, files.folder)
    local_path = str(folder) if folder else None
    cache_folder = str(files.folder) if files.folder else None
    is_local = local_path is not None or not files.may_download
    try:
        model = kind(name, cache_dir=cache_folder, specific_model_path=local_path, local_files_only=is_local)
        first_use(model)
    except model_errors() as exc:
        location = f"in {local_path or cache_folder}" if is_local else "to download"
        message = f"{field}: fastembed cannot use model {name!r} {location}: {first_line(exc)}"
        raise SpecInvalid("InvalidSpec", message) from exc
    return model


def model_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of a model that cannot be opened or run. The runtime's have no common base class."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime  # type: ignore[import-untyped]

    kinds = (kind for kind in vars(runtime).values() if isinstance(kind, type) and issubclass(kind, Exception))
    return ValueError, OSError, RuntimeError, *kinds


def first_line(error: Exception) -> str:
    """Return the first 300 characters of the first line of an error's message, or its class if the message is empty."""
    return (str(error) or type(error).__name__).splitlines()[0][:300]


async def in_thread(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Run a function in one of the embedding threads, at most 4 in this process; return its result."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, lambda: work(*args, **options))

"""Files of ONNX models, and how the optional package `fastembed` opens them: no network unless it is allowed."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentmemory_operator.errors import SpecInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where models lie.

    Attributes:
        folder: holds a folder for each model, of the model's name; downloads are kept there too.
        may_download: what the folder lacks is fetched from the model's publisher.
    """

    folder: Path | None = None
    may_download: bool = False


def check_openable(name: str, files: ModelFiles, *, field: str, instead: str) -> None:
    """Refuse where no model can be opened at all.

    Args:
        field: of the object, that asks for the model.
        instead: another way out than to provide the model.

    Raises:
        SpecInvalid: the package is not installed, or there is neither a folder nor leave to download.
    """
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
    """The model, opened and used once: files of another export load, and fail at their first text.

    Args:
        kind: fastembed's class for such models.
        field: of the object, that names the model.

    Raises:
        SpecInvalid: there is no such model, or its files are not there or cannot be used.
    """
    folder = files.folder / name if files.folder else None
    local = str(folder) if folder and folder.is_dir() else None
    kept = str(files.folder) if files.folder else None
    is_local = local is not None or not files.may_download
    try:
        model = kind(name, cache_dir=kept, specific_model_path=local, local_files_only=is_local)
        first_use(model)
    except model_errors() as exc:
        where = f"in {local or kept}" if is_local else "to download"
        message = f"{field}: fastembed cannot use model {name!r} {where}: {first_line(exc)}"
        raise SpecInvalid("InvalidSpec", message) from exc
    return model


def model_errors() -> tuple[type[Exception], ...]:
    """What is raised for files that are no model; the runtime's errors have no base of their own."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime  # type: ignore[import-untyped]

    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile", "NotImplemented")
    return ValueError, OSError, RuntimeError, *(getattr(runtime, name) for name in names)


def first_line(error: Exception) -> str:
    """The part of the error that a person needs."""
    return (str(error) or type(error).__name__).splitlines()[0][:300]

"""Images of one static program, written as archives that containerd imports."""

import hashlib
import io
import json
import pathlib
import tarfile

# Image of versitygw, a static program like every one that is built without cgo.
S3 = "localhost/versitygw:e2e"


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def write_image(archive: pathlib.Path, name: str, program: pathlib.Path, *arguments: str) -> None:
    """Write an image whose only file is the program, its entrypoint.

    Args:
        name: Name with registry and tag.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        _add(files, program.name, program.read_bytes(), mode=0o755)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}", *arguments], "User": "65534:65534"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as image:
        _add(image, "config.json", json.dumps(config).encode())
        _add(image, "layer.tar", layer.getvalue())
        _add(image, "manifest.json", json.dumps(manifest).encode())

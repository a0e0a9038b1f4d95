"""Rehearsal of a release's signature without a network: sign a file with a new local key, and verify it.

The release workflow signs with `cosign` and a certificate for the workflow's identity, which needs Sigstore's services.
The rehearsal has only been run with `openssl`. The options for `cosign` were compared with the source of 3.1.3, which
calls no service with a key and these options; they were never run.
"""

import pathlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from release.commands import CheckFailed, expect, run


@dataclass(frozen=True, slots=True)
class Signer:
    """A program that signs files and verifies its signatures.

    Attributes:
        program: Name of the program.
        sign: Creates a key pair in a folder, and signs a file with it.
        verify: Verifies a file against key and signature in the folder; raises CheckFailed if they do not match.
    """

    program: str
    sign: Callable[[pathlib.Path, pathlib.Path], object]
    verify: Callable[[pathlib.Path, pathlib.Path], object]


def _cosign_sign(folder: pathlib.Path, file: pathlib.Path) -> None:
    run("cosign", "generate-key-pair", "--output-key-prefix", folder / "local", env={"COSIGN_PASSWORD": ""})
    local = ("--key", folder / "local.key", "--tlog-upload=false", "--use-signing-config=false")
    run("cosign", "sign-blob", "--yes", *local, "--bundle", folder / "bundle", file, env={"COSIGN_PASSWORD": ""})


def _cosign_verify(folder: pathlib.Path, file: pathlib.Path) -> None:
    local = ("--key", folder / "local.pub", "--insecure-ignore-tlog")
    run("cosign", "verify-blob", *local, "--bundle", folder / "bundle", file)


def _openssl_sign(folder: pathlib.Path, file: pathlib.Path) -> None:
    run("openssl", "ecparam", "-genkey", "-noout", "-name", "prime256v1", "-out", folder / "local.key")
    run("openssl", "ec", "-in", folder / "local.key", "-pubout", "-out", folder / "local.pub")
    run("openssl", "dgst", "-sha256", "-sign", folder / "local.key", "-out", folder / "signature", file)


def _openssl_verify(folder: pathlib.Path, file: pathlib.Path) -> None:
    local = ("-verify", folder / "local.pub", "-signature", folder / "signature")
    run("openssl", "dgst", "-sha256", *local, file)


SIGNERS = (
    Signer("cosign", _cosign_sign, _cosign_verify),
    Signer("openssl", _openssl_sign, _openssl_verify),
)


def find_signer() -> Signer:
    """Return the first signer with its program on the PATH.

    Raises:
        CheckFailed: If there is none.
    """
    found = next((signer for signer in SIGNERS if shutil.which(signer.program)), None)
    if found is None:
        raise CheckFailed("a signature with a local key needs cosign or openssl on the PATH")
    return found


def rehearse(file: pathlib.Path, signer: Signer) -> None:
    """Sign a file and verify it; a changed copy must be refused. Key and signature are not kept.

    Raises:
        CheckFailed: If the signature does not verify, or also fits the changed copy.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        signer.sign(folder, file)
        signer.verify(folder, file)
        changed = folder / file.name
        changed.write_bytes(file.read_bytes() + b"\n")
        expect(not _is_accepted(signer, folder, changed), f"{signer.program} accepts a changed {file.name}")


def _is_accepted(signer: Signer, folder: pathlib.Path, file: pathlib.Path) -> bool:
    try:
        signer.verify(folder, file)
    except CheckFailed:
        return False
    return True

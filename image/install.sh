#!/bin/sh
# Install agentmemory into the new folder TARGET: what the Dockerfile runs, and the tests run without a container.
# Every package is a wheel whose hash is locked; nothing that only builds or develops stays in TARGET. What is installed is
# listed in TARGET/sbom.cdx.json. The locks leave out what requirements/unused.in names. MODEL_URL is where the embedding model
# is read from (image/fetch_model.py): empty is Maven Central, `none` leaves it out.
#
#   usage: [PYTHON=python3.11] [EXTRA=fastembed] [MODEL_URL=...] image/install.sh TARGET
set -eu
target=${1:?usage: image/install.sh TARGET}
if [ -e "$target" ]; then
  echo "image/install.sh: $target exists: name a folder that does not" >&2
  exit 1
fi
case $target in /*) ;; *) target=$PWD/$target ;; esac
cd "$(dirname "$0")/.."
lock=requirements/image${EXTRA:+-$EXTRA}.txt
if [ ! -f "$lock" ]; then
  echo "image/install.sh: EXTRA=$EXTRA is not known: fastembed, or leave it empty" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

"${PYTHON:-python3}" -m venv "$work/build"
pip="$work/build/bin/python -m pip --quiet"
$pip install --require-hashes --only-binary :all: -r requirements/build.txt
$pip wheel --no-deps --no-build-isolation --wheel-dir "$work/wheel" . ./client

"${PYTHON:-python3}" -m venv --without-pip "$target"
$pip --python "$target/bin/python" install --require-hashes --no-deps --only-binary :all: -r "$lock"
$pip --python "$target/bin/python" install --no-deps --no-index --find-links "$work/wheel" agentmemory-operator agentmemory-client
# wordllama has no wheel for Linux on arm64. Only the weights in it are read, so the one for amd64 serves everywhere.
$pip install --require-hashes --only-binary :all: --no-deps --platform manylinux2014_x86_64 -r requirements/weights.txt \
  --target "$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
"$work/build/bin/cyclonedx-py" environment --output-reproducible --output-file "$target/sbom.cdx.json" "$target/bin/python"
"$target/bin/python" image/fetch_model.py "$target" "${MODEL_URL:-}"

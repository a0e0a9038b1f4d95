#!/bin/sh
# Write the plugin's archive and its manifest for krew into the folder TARGET; the same sources give the same bytes.
#
#   usage: krew/pack.sh TARGET HOMEPAGE     HOMEPAGE is the repository; its release v* has the archive
set -eu
target=${1:?usage: krew/pack.sh TARGET HOMEPAGE}
homepage=${2:?usage: krew/pack.sh TARGET HOMEPAGE}
case $homepage in https://*) ;; *) echo "krew/pack.sh: HOMEPAGE $homepage is no https:// URL" >&2; exit 1 ;; esac
cd "$(dirname "$0")/.."
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' operator/agentmemory_operator/__init__.py)
archive=kubectl-agentmemory-$version.tar.gz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed "s/@VERSION@/$version/" krew/kubectl-agentmemory > "$work/kubectl-agentmemory"
cp LICENSE "$work"
chmod 755 "$work/kubectl-agentmemory"
chmod 644 "$work/LICENSE"
mkdir -p "$target"
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work" -cf - kubectl-agentmemory LICENSE | gzip -n > "$target/$archive"
sum=$(sha256sum "$target/$archive" | cut -d' ' -f1)
sed -e "s|@VERSION@|$version|" -e "s|@HOMEPAGE@|$homepage|" -e "s|@SHA256@|$sum|" \
  -e "s|@URI@|$homepage/releases/download/v$version/$archive|" krew/agentmemory.yaml > "$target/agentmemory.yaml"
echo "$target/agentmemory.yaml"

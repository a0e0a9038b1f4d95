#!/bin/sh
# Print the image's base with the digest that its registry has for it now: what a release is built on. A base without a
# digest is refused, because a tag may be another image tomorrow.
#
#   usage: image/base.sh [NAME:TAG]     the default is BASE of the Dockerfile
set -eu
LC_ALL=C
base=${1:-$(sed -n 's/^ARG BASE=//p' "$(dirname "$0")/../Dockerfile")}
case $base in
  *@*) digest=${base#*@} ;;
  *) digest=$(docker buildx imagetools inspect "$base" --format '{{.Manifest.Digest}}') || digest= ;;
esac
hex=${digest#sha256:}
case $hex in "$digest" | *[!0-9a-f]*) hex= ;; esac
if [ ${#hex} -ne 64 ]; then
  echo "image/base.sh: $base has no digest (found: '$digest'): name one that the registry knows, or NAME@sha256:..." >&2
  exit 1
fi
echo "${base%%@*}@$digest"

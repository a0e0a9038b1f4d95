#!/bin/sh
# Keep notes under keys of a namespace, the last write wins. README.md says what comes out.
agent=notes
. "$(dirname "$0")/../demo/calls.sh"
put() {
  curl -fsS -X PUT "$url/items?namespace=memories&namespace=$user&key=$1" -H 'Content-Type: application/json' -d "$2"
  echo
}

put drink '{"content": "Favourite drink: coffee"}'
put drink '{"content": "Favourite drink: green tea"}'
put city '{"content": "Lives in Lisbon"}'
curl -fsS "$url/keys?namespace=memories&namespace=$user"
echo
curl -fsS "$url/search" -H 'Content-Type: application/json' \
  -d "{\"user_id\": \"$user\", \"query\": \"favourite drink: green tea?\", \"namespace\": [\"memories\", \"$user\"]}"
echo

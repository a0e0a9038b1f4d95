#!/bin/sh
# Stores a sealed memory and a plain one, shows both as who may read them sees them and as an export has them, and deletes the key.
set -eu
url="${AGENTMEMORY_URL:-http://127.0.0.1:8080}/v1/agents/ward"
user="${EXAMPLE_USER:-ada}"
post() {
  curl -fsS "$url/$1" -H 'Content-Type: application/json' -d "$2"
  echo
}

post memories "{\"user_id\": \"$user\", \"content\": \"Allergic to penicillin\", \"zone\": \"SENSITIVE\"}"
post memories "{\"user_id\": \"$user\", \"content\": \"Likes tea\"}"
curl -fsS "$url/memories?user_id=$user"
echo
curl -fsS "$url/export?user_id=$user"
post forget "{\"user_id\": \"$user\", \"crypto\": true, \"zone\": \"SENSITIVE\"}"
curl -fsS "$url/memories?user_id=$user"
echo

#!/bin/sh
# Store a memory and ask for it, with curl. See docs/http-api.md.
set -eu
url="${AGENTMEMORY_URL:-http://127.0.0.1:8080}/v1/agents/support-bot"
user="${EXAMPLE_USER:-ada}"
# Against an API that demands a token, add to each call: -H "Authorization: Bearer $AGENTMEMORY_TOKEN"

# The same key again gives the same memory: a request whose answer was lost is safe to repeat.
curl -fsS "$url/memories" -H 'Content-Type: application/json' -H "Idempotency-Key: example-$user" \
  -d "{\"user_id\": \"$user\", \"content\": \"Ada pays by invoice, 30 days\", \"type\": \"preference\", \"tags\": [\"billing\"]}"
echo
curl -fsS "$url/search" -H 'Content-Type: application/json' \
  -d "{\"user_id\": \"$user\", \"query\": \"how does she pay?\", \"tags\": [\"billing\"], \"top_k\": 3}"
echo

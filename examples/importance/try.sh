#!/bin/sh
# Two authors share a pool; one asks for all of it, then for what one of them wrote. README.md says what comes out.
set -eu
url="${AGENTMEMORY_URL:-http://127.0.0.1:8080}/v1/agents/coach"
user="${EXAMPLE_USER:-ada}"
post() {
  curl -fsS "$url/$1" -H 'Content-Type: application/json' -d "$2"
  echo
}

post memories "{\"user_id\": \"$user\", \"content\": \"Ran ten kilometres in an hour on Sunday\", \"type\": \"episodic\", \"importance\": 0.4, \"author\": \"trainer\"}"
post memories "{\"user_id\": \"$user\", \"content\": \"Wants to run ten kilometres in an hour\", \"type\": \"semantic\", \"importance\": 0.9, \"author\": \"planner\"}"
post memories "{\"user_id\": \"$user\", \"content\": \"Allergic to nuts\", \"type\": \"semantic\", \"importance\": 1.0, \"decay_rate\": 0, \"author\": \"planner\"}"
post search "{\"user_id\": \"$user\", \"query\": \"run ten kilometres in an hour on Sunday\"}"
post search "{\"user_id\": \"$user\", \"query\": \"run ten kilometres in an hour on Sunday\", \"filters\": {\"author\": \"trainer\"}}"

#!/bin/sh
# Correct a fact, then ask: the new one answers, the old one is its history. README.md says what comes out.
set -eu
url="${AGENTMEMORY_URL:-http://127.0.0.1:8080}/v1/agents/assistant"
user="${EXAMPLE_USER:-ada}"
post() {
  curl -fsS "$url/$1" -H 'Content-Type: application/json' -d "$2"
  echo
}

old=$(post memories "{\"user_id\": \"$user\", \"content\": \"The billing service listens on port 8080\", \"type\": \"fact\"}" | cut -d '"' -f 4)
post memories "{\"user_id\": \"$user\", \"content\": \"The billing service listens on port 4000\", \"type\": \"correction\", \"supersedes\": \"$old\"}"
post memories "{\"user_id\": \"$user\", \"content\": \"Likes short answers\", \"type\": \"preference\"}"
post search "{\"user_id\": \"$user\", \"query\": \"which port does the billing service listen on?\", \"top_k\": 1}"
curl -fsS "$url/memories/$old/history?user_id=$user"
echo

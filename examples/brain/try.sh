#!/bin/sh
# Two authors keep one fact current. README.md says what comes out.
set -eu
url="${AGENTMEMORY_URL:-http://127.0.0.1:8080}/v1/agents/team"
user="${EXAMPLE_USER:-ada}"
post() {
  curl -fsS "$url/$1" -H 'Content-Type: application/json' -d "$2"
  echo
}

post memories "{\"user_id\": \"$user\", \"content\": \"The shop runs on WooCommerce\", \"type\": \"fact\", \"key\": \"shop-stack\", \"author\": \"scout\"}"
post memories "{\"user_id\": \"$user\", \"content\": \"The shop runs on Shopify\", \"type\": \"fact\", \"key\": \"shop-stack\", \"author\": \"planner\"}"
post memories "{\"user_id\": \"$user\", \"content\": \"The relaunch is under way\", \"type\": \"status\", \"subject\": \"relaunch\", \"status_value\": \"active\", \"author\": \"planner\"}"
post memories "{\"user_id\": \"$user\", \"content\": \"The shop runs on Shopify\", \"type\": \"fact\", \"key\": \"shop-stack\", \"author\": \"scout\"}"
post search "{\"user_id\": \"$user\", \"query\": \"what does the shop run on?\"}"

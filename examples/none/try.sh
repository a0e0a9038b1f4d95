#!/bin/sh
# Keep anything, of any type, for ever. README.md says what comes out.
set -eu
url="${AGENTMEMORY_URL:-http://127.0.0.1:8080}/v1/agents/archive"
user="${EXAMPLE_USER:-ada}"
post() {
  curl -fsS "$url/$1" -H 'Content-Type: application/json' -d "$2"
  echo
}

post memories "{\"user_id\": \"$user\", \"content\": \"Minutes of the founding meeting\", \"type\": \"minutes\", \"created_at\": \"2009-05-04T10:00:00Z\"}"
post memories "{\"user_id\": \"$user\", \"content\": \"Invoice of the first office chair\", \"type\": \"invoice\", \"created_at\": \"2010-01-07T10:00:00Z\"}"
post search "{\"user_id\": \"$user\", \"query\": \"the founding meeting\"}"

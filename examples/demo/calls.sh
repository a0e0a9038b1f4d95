# What every try.sh beside this file begins with: where the API is, whose memories, and how it is called.
# `agent` is set by whoever reads it.
set -eu
url="${AGENTMEMORY_URL:-http://127.0.0.1:8080}/v1/agents/$agent"
user="${EXAMPLE_USER:-ada}"

# post PATH BODY
post() {
  curl -fsS "$url/$1" -H 'Content-Type: application/json' -d "$2"
  echo
}

# remember KEY BODY: stores a memory. The same key again is the same memory, however often the example is run.
remember() {
  curl -fsS "$url/memories" -H 'Content-Type: application/json' -H "Idempotency-Key: try-$user-$1" -d "$2"
  echo
}

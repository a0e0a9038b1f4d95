#!/bin/sh
# Keep episodes, knowledge and what a session has in mind. README.md says what comes out.
agent=analyst
. "$(dirname "$0")/../demo/calls.sh"

remember episode "{\"user_id\": \"$user\", \"content\": \"The nightly import failed: disk full\", \"type\": \"episodic\", \"event_type\": \"error_event\", \"context\": \"etl\", \"importance\": 0.9}"
remember knowledge "{\"user_id\": \"$user\", \"content\": \"Imports need twice the size of their file on disk\", \"type\": \"semantic\", \"domain\": \"operations\"}"
for thought in one two three four five; do
  curl -fsS -X PUT "$url/sessions/s1/working?user_id=$user" -H 'Content-Type: application/json' -d "{\"content\": \"Thought $thought\"}"
  echo
done
post search "{\"user_id\": \"$user\", \"query\": \"why did the import fail?\", \"types\": [\"episodic\", \"semantic\"]}"
curl -fsS -X POST "$url/sessions/s1/end?user_id=$user"
echo

#!/bin/sh
# What was said, found by who said it and when. README.md says what comes out.
agent=companion
. "$(dirname "$0")/../demo/calls.sh"

said="\"user_id\": \"$user\", \"session_id\": \"trip\", \"role\": \"user\""
remember asked "{$said, \"speaker\": \"Ann\", \"content\": \"So how did you get to Lisbon in the end, Bob?\", \"created_at\": \"2024-05-04T10:00:00Z\"}"
remember said "{$said, \"speaker\": \"Bob\", \"content\": \"I flew to Lisbon last Friday, with a stop in Madrid and a long wait for my bags\", \"created_at\": \"2024-05-04T10:01:00Z\"}"
post search "{\"user_id\": \"$user\", \"query\": \"When did Bob fly to Lisbon?\", \"include\": {\"neighbours\": 1}}"

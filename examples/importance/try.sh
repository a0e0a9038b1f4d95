#!/bin/sh
# Two authors share a pool; one asks for all of it, then for what one of them wrote. README.md says what comes out.
agent=coach
. "$(dirname "$0")/../demo/calls.sh"

remember run "{\"user_id\": \"$user\", \"content\": \"Ran ten kilometres in an hour on Sunday\", \"type\": \"episodic\", \"importance\": 0.4, \"author\": \"trainer\"}"
remember goal "{\"user_id\": \"$user\", \"content\": \"Wants to run ten kilometres in an hour\", \"type\": \"semantic\", \"importance\": 0.9, \"author\": \"planner\"}"
remember nuts "{\"user_id\": \"$user\", \"content\": \"Allergic to nuts\", \"type\": \"semantic\", \"importance\": 1.0, \"decay_rate\": 0, \"author\": \"planner\"}"
post search "{\"user_id\": \"$user\", \"query\": \"run ten kilometres in an hour on Sunday\"}"
post search "{\"user_id\": \"$user\", \"query\": \"run ten kilometres in an hour on Sunday\", \"filters\": {\"author\": \"trainer\"}}"

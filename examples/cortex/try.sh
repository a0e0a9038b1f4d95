#!/bin/sh
# Correct a fact, then ask: the new one answers, the old one is its history. README.md says what comes out.
agent=assistant
. "$(dirname "$0")/../demo/calls.sh"

old=$(remember old-port "{\"user_id\": \"$user\", \"content\": \"The billing service listens on port 8080\", \"type\": \"fact\"}" | cut -d '"' -f 4)
remember new-port "{\"user_id\": \"$user\", \"content\": \"The billing service listens on port 4000\", \"type\": \"correction\", \"supersedes\": \"$old\"}"
remember style "{\"user_id\": \"$user\", \"content\": \"Likes short answers\", \"type\": \"preference\"}"
post search "{\"user_id\": \"$user\", \"query\": \"which port does the billing service listen on?\", \"top_k\": 1}"
curl -fsS "$url/memories/$old/history?user_id=$user"
echo

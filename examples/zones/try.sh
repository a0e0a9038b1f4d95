#!/bin/sh
# Stores a sealed memory and a plain one, shows both as who may read them sees them and as an export has them, and deletes the key.
agent=ward
. "$(dirname "$0")/../demo/calls.sh"

post memories "{\"user_id\": \"$user\", \"content\": \"Allergic to penicillin\", \"zone\": \"SENSITIVE\"}"
remember tea "{\"user_id\": \"$user\", \"content\": \"Likes tea\"}"
curl -fsS "$url/memories?user_id=$user"
echo
curl -fsS "$url/export?user_id=$user"
post forget "{\"user_id\": \"$user\", \"crypto\": true, \"zone\": \"SENSITIVE\"}"
curl -fsS "$url/memories?user_id=$user"
echo

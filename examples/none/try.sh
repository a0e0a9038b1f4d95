#!/bin/sh
# Keep anything, of any type, for ever. README.md says what comes out.
agent=archive
. "$(dirname "$0")/../demo/calls.sh"

remember minutes "{\"user_id\": \"$user\", \"content\": \"Minutes of the founding meeting\", \"type\": \"minutes\", \"created_at\": \"2009-05-04T10:00:00Z\"}"
remember invoice "{\"user_id\": \"$user\", \"content\": \"Invoice of the first office chair\", \"type\": \"invoice\", \"created_at\": \"2010-01-07T10:00:00Z\"}"
post search "{\"user_id\": \"$user\", \"query\": \"the founding meeting\"}"

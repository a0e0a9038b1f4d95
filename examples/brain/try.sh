#!/bin/sh
# Two authors keep one fact current. README.md says what comes out.
agent=team
. "$(dirname "$0")/../demo/calls.sh"

remember woo "{\"user_id\": \"$user\", \"content\": \"The shop runs on WooCommerce\", \"type\": \"fact\", \"key\": \"shop-stack\", \"author\": \"scout\"}"
remember shopify "{\"user_id\": \"$user\", \"content\": \"The shop runs on Shopify\", \"type\": \"fact\", \"key\": \"shop-stack\", \"author\": \"planner\"}"
remember relaunch "{\"user_id\": \"$user\", \"content\": \"The relaunch is under way\", \"type\": \"status\", \"subject\": \"relaunch\", \"status_value\": \"active\", \"author\": \"planner\"}"
remember shopify-again "{\"user_id\": \"$user\", \"content\": \"The shop runs on Shopify\", \"type\": \"fact\", \"key\": \"shop-stack\", \"author\": \"scout\"}"
post search "{\"user_id\": \"$user\", \"query\": \"what does the shop run on?\"}"

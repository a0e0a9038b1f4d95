"""Outgoing webhooks, which report events of an agent's memories, and authentication of requests to incoming hooks.

Outgoing, in the leading operator:
1. A pass over an AgentMemory calls `deliver.py: WebhookDelivery.schedule`, and writes the returned delivery state, with
   a cursor for each webhook, into `status.webhooks`.
2. A queue of its own reads the agent's change log after the cursor (`memories/change_log.py: read_changes`), and
   `status.lastCleanup`.
3. `rules/events.py: to_event` and `cleanup_event` build the events, and `sign` signs them. A `WebhookSender` posts each
   event that the webhook subscribes to.
4. The cursor moves past the change. If the state has changed, a pass is requested, which writes it into the status.

Incoming, in the API process: `receive.py: HookVerifier.find` finds the hook by agent and name. `HookVerifier.check`
verifies the signature with the key in the hook's Secret. Then `entrypoints/api/transfer/hook_routes.py` stores the
memory or conversation of the request.

Failures: a webhook that fails is retried after 10 s at first, then after doubled delays up to an hour. Its changes stay
in the change log; events older than 72 h are dropped and counted. The agent's other webhooks are still delivered.

Invariants: an event has the same id and body in every attempt and from every operator, so a receiver can ignore
repetitions. No event contains the text of a memory. A forged cursor in a status affects only events of the same tenant.

Tests: `tests/unit/webhooks`, `tests/contract/webhooks`, `tests/operator/test_webhooks.py`, `tests/api/test_hooks.py`.
"""

"""mem0's HTTP dialects at `/mem0/{agent}/`, so that mem0's own clients work with a changed host and key.

1. `Edge` authenticates the request as any other: `dialect.py` reads the credentials that mem0's clients send, and
   renders errors as their servers do.
2. `mem0_routes.py` lists the endpoints with their verbs. Their route class checks the verb and the user of the query.
3. `filter_reader.py` converts mem0's filters to the owners whose memories are read, and a criterion. The caller must
   have rights to each owner. `mem0_requests.py` has the bodies.
4. `platform_handlers.py` and `open_server_handlers.py` call `memory_actions.py`, `listing.py`, `erasing.py` and
   `updating.py`, which use the same use cases as the native routes. `memory_views.py` renders memories.

A mem0 memory is a chain of versions. Its id is that of the first version; the newest one stores it in its metadata,
under the reserved key `mem0`, together with mem0's `agent_id` and `app_id`. `run_id` is the session, `categories` the
tags.

Invariant: a handler reads or writes a memory only after `AgentRights` has allowed its owner.
"""

"""Encryption in privacy zones: the point store that encrypts memories, and its keys, outside every collection.

A *data key* encrypts the memories of one *scope*: one zone of one owner, a user or an organisation. The *wrapping key*
of an agent, which the user puts into a Secret, encrypts its data keys. An agent's data keys form its *ring*, stored in
*shards* (`rules/entries.py`).
"""

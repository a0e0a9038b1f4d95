"""Encryption in privacy zones: the point store that encrypts memories, and its keys, outside every collection.

A *data key* encrypts the memories of one *scope*: one zone of one owner, a user or an organisation. The *wrapping key*
of an agent, which the user puts into a Secret, encrypts its data keys. An agent's data keys form its *ring*, stored in
*shards* (`rules/entries.py`).

API process, if it may read data keys:
1. `agents/directory.py: AgentDirectory.open` wraps the store of an agent with zones in an `EncryptingPointStore`
   (`sealed_store.py`). Writes encrypt the fields that the zone names (`rules/sealing.py`), and reads decrypt them.
2. `keyring.py: Keyring.get_or_create_key` returns the data key of an owner. It stores a new key before the first
   memory, and replaces a key that is due for rotation (`key_lifecycle.py: rotate_due_keys`).
3. After the write, `Keyring.check_stored` confirms that the keys are still stored. Otherwise the request gets 504.
4. The sweep encrypts the memories of replaced keys again (`reencryption_walks.py: ResealWalks`).
5. `forget` destroys keys (`sealed_store.py: ZoneKeys.destroy`), so copies of the memories cannot be decrypted either.

Operator: `key_checks.py: KeyChecks` checks the keys of each object. After a rotation of the wrapping key,
`rewrap.py: rewrap` encrypts the data keys with the new one; no memory is changed.

Invariants: every acknowledged memory uses a key that was still stored after the write. A destroyed key decrypts nothing
after `FRESH_MS`, in any process. A shard is changed only by compare-and-set. A lost shard is not replaced by a new one:
its memories are unavailable, not erased. The name of a ring comes from the object, never from a collection's metadata.

Tests: `tests/unit/zones`, `tests/contract/zones`, `tests/api/test_zones.py`, `tests/api/test_zone_rotation.py`,
`tests/operator/test_zones.py`, `tests/faults/test_zone_keys.py`.
"""

"""State that processes share on a Redis or PostgreSQL server: limits, documents, and the owners of keys.

Start with `_client.py`: a thread that talks to the server for the whole process. `_store.py` is the base of the objects
that users create. `limits/`, `documents/` and `fleet/` have a client, a store and a `_transport.py` each.
A transport is a protocol of operations; `callboard_actors.redis` and `callboard_actors.postgres` implement it.
A fleet has a client of its own, `fleet/_client.py`, which also renews the lease of its keys.
"""

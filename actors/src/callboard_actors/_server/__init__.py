"""State that processes share on a Redis or PostgreSQL server: limits and fleets.

Start with `_client.py`: a thread that talks to the server for the whole process, and the base of the objects that users
create. `_limits.py` and `fleet/` have a client, a store and a transport each: a protocol of operations, which
`callboard_actors.redis` (limits) and `callboard_actors.postgres` (limits and fleets) implement. A fleet has a client of
its own, `fleet/_client.py`, which also renews the lease of its keys.
"""

"""Fleets: groups of processes in which each actor key has one owner process.

Start with `_lease.py`, which argues why two owners of a key do not both write. `_client.py` renews the lease in a
thread, and has the protocol of its connections: PostgreSQL, and the tests' server in memory. `_member.py` has the
object that users create, and what an actor's process has of the fleet: it sends asks to owners, and answers asks of
others.

An ask on its way out: `_router.py` finds the owner of its key, and sends it. `_messages.py` signs everything that
members exchange.
"""

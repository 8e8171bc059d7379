"""Limits shared by many processes: the part that does not depend on the server.

Start with `_gate.py`: one limit as one process knows it, the permits of its calls, and the share of the limit that this
process uses during an outage; and the protocol that Redis and PostgreSQL implement. `_store.py` has the object that
users create, and the client that sends the changes of all gates.
"""

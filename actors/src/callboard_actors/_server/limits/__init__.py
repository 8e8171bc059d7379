"""Limits shared by many processes: the part that does not depend on the server.

Start with `_gate.py`: one limit as one process knows it, with the changes to report. `_permit.py` is the permit of one
attempt at the gate. `_store.py` has the object that users create, and the client that sends the changes of all gates.
During an outage, `_share.py` gives this process a part of each limit. `_transport.py` is the protocol that Redis and
PostgreSQL implement.
"""

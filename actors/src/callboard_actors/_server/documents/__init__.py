"""Documents shared by many processes: the part that does not depend on the server.

Start with `_client.py`, which reads documents, applies rules to them and writes them back. `_changes.py` computes the
new text of a document from all its pending changes. `_store.py` is the object that users create. `_transport.py` is
the protocol that Redis and PostgreSQL implement.
"""

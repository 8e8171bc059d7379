"""Documents shared by many processes: the part that does not depend on the server.

Start with `_store.py`: the object that users create, and the client that reads documents, applies rules to them and
writes them back. `_changes.py` computes the new text of a document from all its pending changes. `_transport.py` is the
protocol that Redis and PostgreSQL implement.
"""

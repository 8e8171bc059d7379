"""Fleets of processes with one owner for each key: the part that does not depend on the server."""

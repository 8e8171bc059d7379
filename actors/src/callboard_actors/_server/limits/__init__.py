"""Limits shared by many processes: the part that does not depend on the server."""

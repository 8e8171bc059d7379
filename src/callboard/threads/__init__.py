"""The conversations of a database, looked at from outside: whoever wrote them, and without running anything."""

"""State that processes share on a Redis or PostgreSQL server: its client, and the stores above it."""

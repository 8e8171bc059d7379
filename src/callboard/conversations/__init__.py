"""Storage of an agent's conversations: journal, checkpoints, and databases by URL."""

"""`McpServer`, against servers of its own, one of each era, and bad ones."""

"""Supervised tool calls and batches: attempts, limits, timeouts, observers and draining."""

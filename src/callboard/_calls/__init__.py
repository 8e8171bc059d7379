"""Supervised tool calls and batches: attempts, limits, time, observers and draining."""

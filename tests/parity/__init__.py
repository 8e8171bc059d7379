"""Comparison with langgraph.prebuilt: equal scenarios must have equal outcomes."""

"""Tests of `_langgraph`."""

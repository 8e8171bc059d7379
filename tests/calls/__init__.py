"""Tests of `_calls`: supervised calls and their limits."""

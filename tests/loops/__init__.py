"""Tests of `_loops`: scopes, bridges, threads."""

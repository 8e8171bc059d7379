"""Helpers that know nothing of calls."""

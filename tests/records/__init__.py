"""Tests of `_records`."""

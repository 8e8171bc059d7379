"""Tests of actors: their lives, supervisors, keys, references and use as tools."""

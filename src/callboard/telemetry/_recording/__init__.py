"""Recordings of runs: their format, writer and reader."""

"""Tests of draining: the outcomes of runs and calls when a process is told to end."""

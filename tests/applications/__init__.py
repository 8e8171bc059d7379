"""Tests of the example applications: the applications themselves, and replays of their recordings."""

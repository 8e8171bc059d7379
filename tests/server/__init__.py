"""Tests of the room of state on a server: limits and fleets."""

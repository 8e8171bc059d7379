"""Tests of callboard and of callboard-actors: one folder for each room of the source, and the promises beside them."""

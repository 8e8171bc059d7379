"""Actors, in the hands of a supervisor and of many that ask them."""

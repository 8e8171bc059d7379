"""Tests on a real Ray cluster: two nodes on this machine, in their own network namespace.

Ray listens on every network interface. The tests are run by hand: `unshare --net python -m tests.ray
tests/ray/within_*.py`.
"""

"""Ray, for real: two nodes on this machine, in a network namespace of their own, as Ray listens on every interface.

By hand as yet: `unshare --net python -m tests.on_ray tests/on_ray/within_*.py`.
"""

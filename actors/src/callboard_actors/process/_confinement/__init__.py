"""Confinement of worker processes: files, network and system calls that they may use.

Start with `_confine.py`, the permissions that users give. `_confinement.py` enforces them in each worker, with Landlock
for files, sockets and processes (`_landlock.py`), and with a seccomp filter (`_seccomp.py`) for system calls.
`_readable.py` lists the paths that every confined worker may read. `_support.py` tells `callboard doctor` what this
system can enforce.
"""

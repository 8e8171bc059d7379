"""Helpers that several packages of this distribution use: checks of options, background tasks, and others.

Each file stands alone, and none imports another one; read a file when another package uses it.

- Packages: `_on_demand.py`, `_extras.py`.
- Checks of options: `_options.py`, `_loopback.py`.
- Text that a model reads: `_excerpts.py`. JSON that is sent or received: `_sendable.py`, `_value_counter.py`.
- Clocks, pauses and tasks: `_boot_clock.py`, `_backoff.py`, `_own_task.py`.
"""

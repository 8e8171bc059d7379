"""Code shared by all engines: it sends function calls to workers, and receives the events and results of the calls.

Start with `_frames.py`, the protocol of a pool with its worker processes.
A call of a pool takes this way:

1. `_lifecycle.py` pairs it with an idle worker.
2. `_codec.py` pickles it. `_pickles.py` and `_main_module.py` find what the worker needs by name.
3. The worker replies with `_replies.py`, or with `_plain_replies.py` if it is confined.
4. `process/_worker_proxy.py` receives events and reply. `_codec.py` or `process/_plain_codec.py` decodes the reply.

Calls of dedicated workers and of Ray actors wait as `_open_call.py` says.
`_lifecycle.py` also opens an engine in each event loop. `_kernel.py` and `_libc.py` ask the operating system.
"""

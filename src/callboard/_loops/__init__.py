"""Event loop layer of supervision: asyncio and trio backends, worker threads, deadlines and bridges between loops."""

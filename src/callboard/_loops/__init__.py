"""What supervision needs of an event loop: asyncio's answer and trio's, threads, deadlines and bridges."""

"""One supervised call and many at once: attempts, limits, what surrounds them, and who observes."""

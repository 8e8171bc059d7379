"""`Cache`: middleware that reuses the results of identical calls."""

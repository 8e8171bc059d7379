"""`Cache`: results of calls, kept for equal calls."""

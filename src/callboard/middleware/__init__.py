"""Links around a tool call: each takes the request and what comes next, and returns the result."""

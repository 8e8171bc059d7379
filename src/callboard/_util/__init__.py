"""General helpers, which are independent of tool calls."""

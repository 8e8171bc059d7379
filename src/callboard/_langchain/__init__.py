"""LangChain's convention of a tool call: its arguments, its callbacks, its result, and the texts of its errors."""

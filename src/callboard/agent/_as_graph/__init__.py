"""The parts of an agent that look like a compiled LangGraph graph."""

"""callboard against langgraph.prebuilt: the same scenario, the same outcome."""

"""`OutputBudget`: long results cut, the rest kept where a tool can read it."""

"""`OutputBudget`: shortening of long results, which a tool can read in full."""

"""`RepairArguments`: correction of frequent mistakes of models in the arguments of tool calls."""

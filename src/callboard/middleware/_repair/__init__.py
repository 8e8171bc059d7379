"""`RepairArguments`: the usual slips of models, put right where there is one way only."""

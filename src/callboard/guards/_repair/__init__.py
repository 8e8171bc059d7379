"""`RepairArguments`: correction of frequent mistakes in arguments, if only one correction is possible."""

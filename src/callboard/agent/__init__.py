"""ReAct agents: a loop of model replies and tool calls. Public names are exported by `callboard`."""

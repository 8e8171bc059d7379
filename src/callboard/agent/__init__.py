"""The ReAct loop: model, batch of calls, model; the public names are exported by `callboard` itself."""

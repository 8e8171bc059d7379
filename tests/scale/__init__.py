"""Scaling: a discrete-event model of a fleet of many nodes, and the costs that one machine can measure."""

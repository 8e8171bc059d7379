"""What grows with what: a fleet of many nodes as a discrete-event model, beside what one machine can measure."""

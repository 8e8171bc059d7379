"""One owner for each key among many processes: what is the same wherever keys are kept."""

"""Places at limits that many processes share: what is the same wherever they are kept."""

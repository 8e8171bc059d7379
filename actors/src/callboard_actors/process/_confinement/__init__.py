"""Confinement of worker processes: files, network and system calls that they may use."""

"""Shared parts of the engines: frames, codecs, sessions and calls between a process and its workers."""

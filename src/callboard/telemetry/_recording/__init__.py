"""Recordings of agent runs, tool calls and actors: their format, writer and reader."""

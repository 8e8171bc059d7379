"""Actors: state with a life, a mailbox and a supervisor. Knows no LangChain."""

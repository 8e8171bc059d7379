"""Adapter to LangGraph; only this package uses LangGraph's private names.

`_outer_task`: the graph task that runs callboard. `_call_scope`: the config of code inside a call, and streams of the
outer graph. `_node_scope`: the config of a node of callboard's agent. `_savers`: access to checkpointers.
`_serializers`: values in LangGraph's storage format. `_vocabulary`: public names of both packages.

Names and meanings are those of langgraph 1.2; `tests/langgraph/test_private_names.py` fails when they change.
"""

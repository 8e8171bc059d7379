"""Contract tests of engines, and an engine without processes, which the tests of other rooms use.

`EngineContract` imports LangChain, and a worker of an engine imports only `_bodies`: so each is imported from its file.
"""

"""Other people's test suites, run twice: as they are, and with every name of LangGraph's replaced by callboard's."""

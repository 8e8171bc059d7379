"""Test suites of other projects, run twice: unchanged, and with LangGraph's names replaced by callboard's."""

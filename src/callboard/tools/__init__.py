"""Execution of LangChain tools as supervised calls. The package `callboard` exports the public names."""

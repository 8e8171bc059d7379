"""LangChain tools as supervised calls; `callboard` exports the public names."""

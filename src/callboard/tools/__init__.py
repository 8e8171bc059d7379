"""LangChain tools as supervised calls; the public names are exported by `callboard` itself."""

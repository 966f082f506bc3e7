"""GBNF without llama.cpp: what is read, what may follow, and that neither takes long."""

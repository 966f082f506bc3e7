"""The one package that imports llama_cpp (and numpy): the real backend."""

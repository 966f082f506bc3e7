"""Writers of tiny random GGUF files, one kind of model a file."""

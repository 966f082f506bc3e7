"""Which models there are to load: folders of GGUF files, and preset files."""

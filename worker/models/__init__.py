"""The models that can be loaded: folders of GGUF files, and preset files."""

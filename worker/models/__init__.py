"""The models that can be loaded: what folders, preset files and the hub's cache list."""

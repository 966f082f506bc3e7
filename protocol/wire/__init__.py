"""How messages become frames, and what the values of a request look like. Imported by all sides."""

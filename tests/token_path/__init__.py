"""Follows a token from the engine to the client's socket, and compares the page that says how."""

"""Converts a conversation to the prompt, the grammar and the expected parts of the answer."""

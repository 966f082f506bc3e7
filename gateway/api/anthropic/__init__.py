"""Anthropic's shapes: pure functions between JSON bodies and messages."""

"""Anthropic's shapes: bodies and answers, as pure functions."""

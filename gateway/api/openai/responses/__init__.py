"""OpenAI's /v1/responses: its items as messages, its objects, its events."""

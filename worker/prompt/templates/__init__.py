"""The built-in chat templates."""

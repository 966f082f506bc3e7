"""llama-server's own shapes: pure functions between JSON bodies and messages."""

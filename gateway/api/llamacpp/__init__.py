"""llama-server's own shapes: bodies and answers, as pure functions."""

"""llama-server's router: which models are loaded, who waits for one, which one makes room."""

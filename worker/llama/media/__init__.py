"""Images and sounds through libmtmd; only the backend and the embedder import from here."""

"""What the dialects share: the tables of request fields and their bounds. Imports protocol only."""

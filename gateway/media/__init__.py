"""Media that a request only names: fetched from hosts that are allowed, or read from a folder."""

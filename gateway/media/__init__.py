"""Media given by URL: fetched from allowed hosts, or read from a folder."""

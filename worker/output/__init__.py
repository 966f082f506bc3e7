"""From tokens to text: incremental UTF-8, stop strings."""

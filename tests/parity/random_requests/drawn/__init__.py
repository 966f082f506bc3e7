"""What is drawn at random, one kind of requests a module."""

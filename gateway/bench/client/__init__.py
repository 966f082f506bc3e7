"""The client that `llamapool bench` measures with: connections, dialects, transcripts."""

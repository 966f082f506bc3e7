"""Continuous batching without llama.cpp: slots, scheduling, the step loop, the backend's seam.

Standard library and `protocol` only, so that every decision is tested in microseconds.
"""

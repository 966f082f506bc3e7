"""Tests of the benchmarks and of the proof on a GPU."""

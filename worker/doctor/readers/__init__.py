"""Reads files and libraries for the doctor: ELF, ZeroMQ."""

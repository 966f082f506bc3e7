"""Installs llamapool with its systemd units on a host, or into a Debian package."""

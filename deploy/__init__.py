"""What installs and runs llamapool on hosts and clusters."""

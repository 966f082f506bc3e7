"""What the engine does on a CPU only. Imported by the engine alone, where the backend is one."""

"""Reading files and drivers for the doctor: ELF, GGUF headers, NVML."""

"""Reading files, drivers and libraries for the doctor: ELF, NVML, ZeroMQ."""

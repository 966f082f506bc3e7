"""Model files beyond what llama.cpp loads: tensors, metadata, mapped pages."""

"""What is read of model files beside what llama.cpp loads."""

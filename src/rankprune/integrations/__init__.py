"""Other people's loops: Lightning, Hugging Face Trainer, Accelerate. Each file needs its library alone."""

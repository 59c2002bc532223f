"""Pruning in the training loops of Lightning, Hugging Face's Trainer and Accelerate; each module needs one library."""

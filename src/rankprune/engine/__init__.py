"""The sparse CPU engine: capture, lowering, kernels, and a runtime that does not need torch."""

"""The sparse CPU engine: capture, planning, kernels, and a runtime that needs no torch."""

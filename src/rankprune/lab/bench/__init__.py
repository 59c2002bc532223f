"""Latency of a network on the engine beside other runtimes."""

"""Latency of a network on the sparse engine and on other engines."""

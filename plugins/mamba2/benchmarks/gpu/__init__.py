"""Proves and times the CUDA scan on a GPU: `make test-gpu`."""

"""Mamba-2 as a foxflow model."""

"""What every Torch plugin of foxflow shares: the training loop, the stream, checkpoints and the export."""

"""Backtesting with scheduled retraining: bars in, scored walk-forward forecasts and an ONNX release out."""

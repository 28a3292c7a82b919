"""A policy as an ONNX model."""

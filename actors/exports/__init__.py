"""A policy for other runtimes: as an ONNX file and as a C header, each checked against the policy before it is written."""

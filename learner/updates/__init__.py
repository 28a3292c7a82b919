"""The optimiser step: micro-batches, mixed precision, torch.compile, CUDA graphs."""

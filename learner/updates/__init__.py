"""One optimiser step: micro-batches, mixed precision, compiled and recorded updates."""

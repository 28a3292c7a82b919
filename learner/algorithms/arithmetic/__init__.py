"""Returns, advantages and densities: pure functions of tensors."""

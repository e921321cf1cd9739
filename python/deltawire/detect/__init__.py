"""What changed in a step, found where the tensors are."""

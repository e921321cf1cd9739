"""What the vectors contain: tensor states, good files, bad files."""

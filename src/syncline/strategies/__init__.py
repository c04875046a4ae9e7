"""Ways to train: one module or folder each, and the registry of them."""

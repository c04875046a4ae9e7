"""A model in stages: programs that run a part of the captured graph, and who holds which part."""

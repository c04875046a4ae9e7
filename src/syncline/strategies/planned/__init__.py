"""`planned` and `tensor`: a captured graph as one program per rank over local tensors."""

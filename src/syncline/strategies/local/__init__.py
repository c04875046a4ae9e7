"""`local`: blocks of layers that learn from losses of their own, with no backward pass between ranks."""

"""What is trained: the built-in models and data sets, and loading the user's own."""

"""The built-in data sets, each with a train and an evaluation split."""

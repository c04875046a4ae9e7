"""The loop: batches, checkpoints, metrics, and the run folder that holds them."""

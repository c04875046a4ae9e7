"""Find how to train a model fastest on a cluster, train it that way, and see what each way costs."""

__version__ = "0.1.0"

"""The built-in models, each from tiny to full size."""

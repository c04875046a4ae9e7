"""Measuring on this machine what the cost model would otherwise estimate."""

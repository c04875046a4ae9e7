"""Decides how a model is split: shardings, their cost in seconds, and the search for the cheapest. Pure."""

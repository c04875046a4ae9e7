"""Averages between nodes: one mechanism for every strategy whose nodes exchange weights seldom."""

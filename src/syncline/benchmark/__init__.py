"""Trainings side by side: a suite becomes cells, cells become rows, rows become a report."""

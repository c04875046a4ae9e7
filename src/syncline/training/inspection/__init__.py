"""Taking a few steps of a run apart: where their time goes on each rank, and what their memory holds."""

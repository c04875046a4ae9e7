"""Starting ranks: on this machine, on emulated nodes, under Slurm."""

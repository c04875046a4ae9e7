"""Hardware as data: topology, ranks, devices, and what the links carry."""

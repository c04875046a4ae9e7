"""Models whose large weights are recipes: any part of a weight can be made without the rest."""

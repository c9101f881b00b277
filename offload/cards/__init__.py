"""Cards: what weights are placed on, real or simulated, and how to find it."""

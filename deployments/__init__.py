"""The Ray Serve application: one driver in front, one diffusion replica per card behind it."""

"""The embedded demo model: a small text-to-image checkpoint and everything that made it."""

"""Train a small byte-level transformer, and resume it on any number of processes."""

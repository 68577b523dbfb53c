"""Checkpoints: what a tensor's content is, whatever the ranks that hold it, and what a saved one must be."""

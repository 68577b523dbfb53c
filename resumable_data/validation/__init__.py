"""Validation of a resume: whether what was loaded is what was saved, and whether training goes on as it would have."""

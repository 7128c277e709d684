"""Handwritten digits with mixed tasks: the fastest taste, without a download."""

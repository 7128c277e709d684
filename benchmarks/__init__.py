"""Timings and memory, as ratios from interleaved runs."""

"""Benchmarks with several targets in every pixel: segmentation, depth and surface normals."""

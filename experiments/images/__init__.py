"""What the image benchmarks share: decoding, keeping, batching and augmenting images."""

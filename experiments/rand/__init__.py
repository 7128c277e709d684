"""The RAND health insurance experiment: a count, an ordered, a binary and a Gaussian outcome."""

"""The swap matrix: every head with every scheme, prior, estimator and aggregation."""

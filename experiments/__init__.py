"""The paper's benchmarks, and the tools that compare methods on them."""

"""Tox21: twelve toxicity assays of small molecules, most with labels missing."""

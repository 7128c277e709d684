"""scikit-learn's diabetes table: too few rows to be careless with."""

"""What finished runs of a comparison show: one table, and figures."""

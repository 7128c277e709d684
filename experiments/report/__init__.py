"""Reports: tables and figures of runs, ours beside the paper's numbers.

:mod:`.frame` has all runs as a pandas frame, :mod:`.table` what a table is, :mod:`.render` how it
looks, :mod:`.write` all tables of a results store.
"""

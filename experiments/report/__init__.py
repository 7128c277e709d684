"""Reports: tables and figures of runs, ours beside the paper's numbers.

:mod:`.frame` has all runs as a pandas frame, :mod:`.write` all tables of a results store.
:mod:`.figures` draws those of a store, :mod:`.curves` runs over their epochs, both in the colours
of :mod:`.style`.
"""

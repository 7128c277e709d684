"""Settings for the whole suite."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# The same examples on every machine, no deadline on a busy one, and no database on disk. For a
# longer search with new examples each time: HYPOTHESIS_PROFILE=search pytest ...
_COMMON = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=25, derandomize=True, **_COMMON)
settings.register_profile("search", max_examples=300, derandomize=False, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

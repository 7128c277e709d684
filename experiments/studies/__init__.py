"""Worked studies: small experiments that answer one question each, with figures."""

from experiments.studies.approximations import STUDY as APPROXIMATIONS
from experiments.studies.heads import STUDY as HEADS
from experiments.studies.missing import STUDY as MISSING
from experiments.studies.priors import STUDY as PRIORS
from experiments.studies.study import Context, Outcome, Study, conduct

__all__ = ["STUDIES", "Context", "Outcome", "Study", "conduct"]

#: By name, in the order of the documentation.
STUDIES = {study.name: study for study in (APPROXIMATIONS, PRIORS, MISSING, HEADS)}

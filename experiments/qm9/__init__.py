"""QM9: 130,831 small molecules with eleven properties to learn at once.

>>> data = load()                                             # doctest: +SKIP
>>> run = prepare(data, seed=0, molecules=6000)               # doctest: +SKIP
>>> order = torch.Generator().manual_seed(1)                  # doctest: +SKIP
>>> for graphs, targets in run.train.batches(120, order):  # doctest: +SKIP
...     ...
"""

from experiments.qm9.batching import PaddedMolecules
from experiments.qm9.dataset import QM9, WHOLE_SET, Features, Source, load
from experiments.qm9.molecules import Molecules
from experiments.qm9.prepared import MoleculeRows, Prepared, prepare
from experiments.qm9.splits import Standardiser, split
from experiments.qm9.targets import BENCHMARK, BENCHMARK_COLUMNS, PROPERTIES, Property

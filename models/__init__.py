"""Backbones of the benchmarks. Only torch is imported here; other packages when they are used."""

from __future__ import annotations

from models.cifar import CifarNetwork
from models.errors import GraphError, MissingPackageError, NetworkError
from models.graphs import PaddedGraphs, pad
from models.message_passing import MessagePassing
from models.message_passing_pyg import MessagePassingPyG, to_geometric
from models.resnet import ResNetFeatures, WeightsError

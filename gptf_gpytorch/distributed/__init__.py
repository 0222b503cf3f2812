"""Layer 1: sums over chunks of entries and over workers."""

from gptf_gpytorch.distributed.communicator import Communicator, HorovodCommunicator, SingleProcess, current
from gptf_gpytorch.distributed.elastic import ElasticCommunicator
from gptf_gpytorch.distributed.sharded_sum import sharded_sum

__all__ = ["Communicator", "ElasticCommunicator", "HorovodCommunicator", "SingleProcess", "current", "sharded_sum"]

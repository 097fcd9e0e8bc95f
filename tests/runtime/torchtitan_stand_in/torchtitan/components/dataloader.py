"""Stands in for torchtitan 0.3: the base of data loaders, whose batches are rows of tokens."""

from torchtitan.protocols.module import Configurable


class BaseDataLoader(Configurable):
    class Config(Configurable.Config):
        pass

"""Stands in for torchtitan after 0.3: the base of data loaders, whose batches are one row."""

from torchtitan.protocols.module import Configurable


class BaseDataLoader(Configurable):
    class Config(Configurable.Config):
        pass

"""Stands in for torchtitan: the base of data loaders."""

from torchtitan.protocols.module import Configurable


class BaseDataLoader(Configurable):
    class Config(Configurable.Config):
        dataset_path: str | None = None

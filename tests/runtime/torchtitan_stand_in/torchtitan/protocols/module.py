"""Stands in for torchtitan: classes that are built from their configs."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import nn


class Configurable:
    @dataclass(kw_only=True)
    class Config:
        owner: ClassVar[Any] = None

        def build(self, **others):
            return self.owner(config=replace(self), **others)

    def __init_subclass__(cls, **others):
        super().__init_subclass__(**others)
        if "Config" in cls.__dict__:
            cls.Config.owner = cls


class Module(nn.Module, Configurable):
    """A module with a config."""

    def parallelize(self, parallel_dims):
        """Change what this module itself sends."""

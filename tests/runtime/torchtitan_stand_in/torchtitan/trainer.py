"""Stands in for torchtitan: the trainer, whose steps are not here."""

from dataclasses import dataclass

from torchtitan.protocols.module import Configurable


class Trainer(Configurable):
    @dataclass(kw_only=True)
    class Config(Configurable.Config):
        pass

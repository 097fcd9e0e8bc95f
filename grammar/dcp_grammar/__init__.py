"""The .dcpm language as text: the Lark grammar and the standard library of masks."""

from importlib.resources import files
from importlib.resources.abc import Traversable

GRAMMAR: Traversable = files(__name__) / "dcpm.lark"
MASKS: Traversable = files(__name__) / "masks"

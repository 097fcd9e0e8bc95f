"""The .dcpm language as text: the Lark grammar, the table of words, the library of masks."""

from importlib.resources import files
from importlib.resources.abc import Traversable

from dcp_grammar.vocabulary import WORDS, Role, Word, patterns, words_of

__all__ = ["GRAMMAR", "MASKS", "WORDS", "Role", "Word", "patterns", "words_of"]

GRAMMAR: Traversable = files(__name__) / "dcpm.lark"
MASKS: Traversable = files(__name__) / "masks"

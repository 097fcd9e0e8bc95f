from .completion import complete_at
from .hover import describe_at, example_call

__all__ = ["complete_at", "describe_at", "example_call"]

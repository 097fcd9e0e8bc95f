from .file import decode_plan, encode_plan
from .joining import join_plans
from .part import PlanPart, decode_part, encode_parts

__all__ = [
    "PlanPart",
    "decode_part",
    "decode_plan",
    "encode_parts",
    "encode_plan",
    "join_plans",
]

from .assembly import join_plans
from .columns import PlanPart, decode_part, encode_parts
from .file import PlanFile, decode_plan, encode_plan

__all__ = [
    "PlanFile",
    "PlanPart",
    "decode_part",
    "decode_plan",
    "encode_parts",
    "encode_plan",
    "join_plans",
]

"""Cut the checks of a text that is free of errors into steps."""

from collections.abc import Iterator

from dcp_dsl.claims.check_statements import claim_steps
from dcp_dsl.claims.lints import lint_steps
from dcp_dsl.claims.static_checks import mask_steps
from dcp_dsl.claims.testing import Step, Testing


def all_steps(testing: Testing) -> Iterator[Step]:
    """Yield the steps of all claims, of the safety of all masks, and of all lints, in order."""
    yield from claim_steps(testing)
    yield from mask_steps(testing)
    yield from lint_steps(testing)

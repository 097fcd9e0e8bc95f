"""What all tests share: properties are tried on the same examples in every run, but at night."""

import pytest
from hypothesis import settings

settings.register_profile("dcp", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("nightly", deadline=None, print_blob=True)
settings.load_profile("dcp")

collect_ignore = ["mutations", "repeat.py"]  # scripts of their own
TIMES_AS_MANY = 10  # examples at night, when they are drawn anew


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """At night change what tests settle for themselves, too."""
    if settings.get_current_profile_name() != "nightly":
        return
    for test in {getattr(item, "function", None) for item in items}:
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is not None:
            test._hypothesis_internal_use_settings = settings(
                own, derandomize=False, max_examples=TIMES_AS_MANY * own.max_examples
            )

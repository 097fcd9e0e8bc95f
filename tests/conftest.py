"""What all tests share: properties are tried on the same examples in every run."""

from hypothesis import settings

settings.register_profile("dcp", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("dcp")

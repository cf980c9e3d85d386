"""What all tests share."""

from hypothesis import settings

# A busy machine is not a failure: examples have no time limit of their own.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
